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
from typing import NamedTuple

import numpy as np
from numba import njit

from sim.settings.config import SimConfig
from sim.world.sampling import Bools, Floats, Ints

ADAM = (0.9, 0.999, 1e-8)
"""The trainer's decays of the mean gradient and of its mean square, and the addend to the root."""


class Optimizer(NamedTuple):
    """Settings of the optimizer, passed to compiled code."""

    adam: bool
    beta_1: float
    beta_2: float
    eps: float
    max_norm: float
    """Largest gradient norm of a step; infinite without clipping."""
    mini_batch: int
    """Problems per optimizer step."""

    @property
    def is_plain(self) -> bool:
        """One problem per plain gradient step: nothing but `rate * gradient`."""
        return not self.adam and self.mini_batch == 1 and self.max_norm == math.inf


class Moments(NamedTuple):
    """Adam's memory of rows of parameters that are stepped together; one empty row for SGD."""

    first: Floats
    """(R, rows, parameters) decayed mean of the gradient."""
    second: Floats
    """(R, rows, parameters) decayed mean of its square."""
    steps: Ints
    """(R, rows) optimizer steps taken."""


def make_optimizer(config: SimConfig) -> Optimizer:
    """Return the optimizer that the settings name."""
    most = math.inf if config.max_grad_norm is None else config.max_grad_norm
    return Optimizer(config.optimizer == "adam", *ADAM, float(most), config.mini_batch)


def moments(optimizer: Optimizer, replicates: int, rows: int, parameters: int) -> Moments:
    """Zero moments of parameters of shape (replicates, rows, parameters)."""
    shape = (replicates, rows, parameters) if optimizer.adam else (1, 1, 1)
    return Moments(np.zeros(shape), np.zeros(shape), np.zeros(shape[:2], np.int64))


@njit
def begin_step(optimizer: Optimizer, first: int, drop_P: Bools, norm_P: Floats) -> tuple[int, int]:
    """Set the norms of a mini-batch to 0; returns its end and how many problems did not leave."""
    last, kept = min(first + optimizer.mini_batch, drop_P.shape[0]), 0
    for p in range(first, last):
        norm_P[p] = 0.0
        kept += not drop_P[p]
    return last, kept


@njit
def own_square(gradient_PA: Floats, drop_P: Bools, first: int, last: int) -> float:
    """Squared norm of the summed gradient in the mini-batch's own logits."""
    square = 0.0
    for p in range(first, last):
        if not drop_P[p]:
            for a in range(gradient_PA.shape[1]):
                square += gradient_PA[p, a] * gradient_PA[p, a]
    return square


@njit
def mean_and_clip(optimizer: Optimizer, square: float, kept: int) -> float:
    """Factor that makes a summed gradient of squared norm `square` a clipped mean."""
    if optimizer.max_norm == np.inf:
        return 1.0 / kept
    norm = np.sqrt(square) / kept
    return min(1.0, optimizer.max_norm / (norm + 1e-6)) / kept


@njit
def step_row(
    value_A: Floats,
    gradient_A: Floats,
    scale: float,
    rate: float,
    optimizer: Optimizer,
    moments: Moments,
    r: int,
    row: int,
) -> float:
    """Move parameters, row (r, row) of `moments`, up the gradient; return |change|^2."""
    square = 0.0
    if not optimizer.adam:
        for a in range(value_A.shape[0]):
            change = rate * (scale * gradient_A[a])
            value_A[a] += change
            square += change * change
        return square
    moments.steps[r, row] += 1
    t = moments.steps[r, row]
    rise_1, rise_2 = 1.0 - optimizer.beta_1**t, 1.0 - optimizer.beta_2**t
    m_A, v_A = moments.first[r, row], moments.second[r, row]
    for a in range(value_A.shape[0]):
        g = scale * gradient_A[a]
        m_A[a] = optimizer.beta_1 * m_A[a] + (1.0 - optimizer.beta_1) * g
        v_A[a] = optimizer.beta_2 * v_A[a] + (1.0 - optimizer.beta_2) * g * g
        change = rate * (m_A[a] / rise_1) / (np.sqrt(v_A[a] / rise_2) + optimizer.eps)
        value_A[a] += change
        square += change * change
    return square
