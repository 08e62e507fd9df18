"""Compiled steps of gradient descent or Adam along the clipped mean gradient of a mini-batch.

A batch of P problems is cut in visiting order into mini-batches of `mini_batch`, and each is one
step. All gradients of a batch are those at the probabilities that its votes were drawn from; its
steps follow one another.

* The gradient of a step is the mean over the mini-batch's problems. A problem that left the batch
  (`drop_RP`) leaves the denominator too, and with none left there is no step. A problem whose
  gradient is 0 stays in it.
* Clipping: the gradient of all parameters, shared ones included, is multiplied by
  min(1, max_grad_norm / (norm + 1e-6)), as in PyTorch. Norms are those of logit gradients, at most
  about 0.7 a problem, so a trainer's number means nothing here.
* Adam is algorithm 1 of Kingma and Ba (2015). The logits u_i of one problem have moments and a step
  count t of their own, which advance at the optimizer steps that the problem takes part in (as in
  PyTorch's SparseAdam); shared parameters advance at every step. In one language model all problems
  share the second moments, so here a constant factor on one problem's loss is nearly forgotten by
  its own logits, and shows in the shared directions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sim.settings.config import SimConfig
from sim.world.sampling import Bools, Floats, Ints

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
"""The trainer's decays of the mean gradient and of its mean square, and the addend to the root."""


class Optimizer(NamedTuple):
    """Settings of the optimizer, passed to compiled code."""

    adam: bool
    max_norm: float
    """Largest gradient norm of a step; infinite without clipping."""
    mini_batch: int
    """Problems per optimizer step."""


class Rows(NamedTuple):
    """Rows of parameters that are stepped together, with Adam's memory; one empty row for SGD."""

    values: Floats
    """(R, rows, parameters), changed in place."""
    first: Floats
    """(R, rows, parameters) decayed mean of the gradient."""
    second: Floats
    """(R, rows, parameters) decayed mean of its square."""
    steps: Ints
    """(R, rows) optimizer steps taken."""


def make_optimizer(config: SimConfig) -> Optimizer:
    """Return the optimizer that the settings name."""
    most = math.inf if config.max_grad_norm is None else config.max_grad_norm
    return Optimizer(config.optimizer == "adam", float(most), config.mini_batch)


def start_rows(optimizer: Optimizer, values: Floats) -> Rows:
    """Return rows of (R, rows, parameters) before the first step."""
    shape = values.shape if optimizer.adam else (1, 1, 1)
    return Rows(values, np.zeros(shape), np.zeros(shape), np.zeros(shape[:2], np.int64))


@njit(cache=True, nogil=True)
def take_steps(
    optimizer: Optimizer,
    rate: float,
    local: Rows,
    shared: Rows,
    factor_S: Floats,
    problems_RP: Ints,
    gradient_RPA: Floats,
    pull_RPSK: Floats,
    drop_RP: Bools,
) -> Floats:
    """Take the optimizer steps of one batch; returns the norm (R, P) of each problem's step.

    Args:
        local: parameters of every problem.
        shared: S rows of parameters that all problems share.
        factor_S: factors on the rate of the shared rows.
        gradient_RPA: gradient of every problem in its own parameters.
        pull_RPSK: that in the shared ones.
    """
    (R, P, A), norm_RP = gradient_RPA.shape, np.zeros(problems_RP.shape)
    pull_SK = np.empty(pull_RPSK.shape[2:])
    for r in range(R):
        for first in range(0, P, optimizer.mini_batch):
            last, kept = min(first + optimizer.mini_batch, P), 0
            pull_SK[:] = 0.0
            own_square, shared_square, changed = 0.0, 0.0, 0.0
            for p in range(first, last):
                if not drop_RP[r, p]:
                    kept += 1
                    pull_SK += pull_RPSK[r, p]
                    for a in range(A):
                        own_square += gradient_RPA[r, p, a] * gradient_RPA[r, p, a]
            if kept == 0:
                continue
            for pull in pull_SK.flat:
                shared_square += pull * pull
            scale = 1.0 / kept
            if optimizer.max_norm < np.inf:
                norm = np.sqrt(own_square + shared_square) / kept
                scale = min(1.0, optimizer.max_norm / (norm + 1e-6)) / kept
            for p in range(first, last):
                if not drop_RP[r, p]:
                    at = (r, problems_RP[r, p])
                    changed += _step_row(optimizer, local, at, gradient_RPA[r, p], scale, rate)
            for s in range(factor_S.shape[0]):
                shared_rate = rate * factor_S[s]
                changed += _step_row(optimizer, shared, (r, s), pull_SK[s], scale, shared_rate)
            norm_RP[r, first:last] = np.sqrt(changed)
    return norm_RP


@njit
def _step_row(
    optimizer: Optimizer, rows: Rows, at: Any, gradient_A: Floats, scale: float, rate: float
) -> float:
    """Move the parameters of one row up the gradient; returns |change|^2."""
    value_A, square = rows.values[at], 0.0
    if not optimizer.adam:
        for a in range(value_A.shape[0]):
            change = rate * (scale * gradient_A[a])
            value_A[a] += change
            square += change * change
        return square
    rows.steps[at] += 1
    rise_1, rise_2 = 1.0 - BETA_1 ** rows.steps[at], 1.0 - BETA_2 ** rows.steps[at]
    m_A, v_A = rows.first[at], rows.second[at]
    for a in range(value_A.shape[0]):
        g = scale * gradient_A[a]
        m_A[a] = BETA_1 * m_A[a] + (1.0 - BETA_1) * g
        v_A[a] = BETA_2 * v_A[a] + (1.0 - BETA_2) * g * g
        change = rate * (m_A[a] / rise_1) / (np.sqrt(v_A[a] / rise_2) + EPS)
        value_A[a] += change
        square += change * change
    return square
