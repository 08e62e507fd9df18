"""A measured kernel: a matrix says how far an update on one problem moves each other problem.

    z_ia = log p0_ia + v_ia

Let d_j be the change that the optimizer makes to the logits of problem j from its own gradient
(step * g_j for SGD). The visit then moves

    v_ja    += k_jj * d_ja                   all answers a of the visited problem itself
    v_i,c_i += k_ij * t(d_j,c_j)             every other problem i: its correct answer c_i
    v_i,b_i += k_ij * t(d_j,b_j)             and its attractor b_i

    t(d) = d where d > 0, neg_transfer * d where d < 0

So k_ij takes the place of the attractor policy's kappa * phi_i * phi_j, one matrix for both roles;
the remaining wrong answers of different problems have nothing in common and do not touch. The
identity is the independent policy, and with neg_transfer = 1 the law is linear, as a measured
response is. k_jj says how far a step of one carries the problem itself, so divide a matrix of
gradient products by its mean diagonal to keep the meaning of `step`.

With two answers and neg_transfer = 1, attractor at load_sd = 0 and kappa_corr = kappa_att = kappa
is the kernel I + kappa. The parameters here are the logits of all problems: update norms are those
of all that moved. Adam works on the visited problem's own logits; the kernel passes its change on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit

from lab.errors import UserError
from sim.settings.config import SimConfig
from sim.world.optimizer import (
    Moments,
    Optimizer,
    count_kept,
    make_optimizer,
    mean_and_clip,
    moments,
    own_square,
    step_row,
)
from sim.world.policies.base import Bools, Floats, Ints, dropped, softmax
from sim.world.populations import Population

_SYMMETRY = 1e-6
"""Largest difference between k_ij and k_ji, relative to the largest entry."""


class Kernel:
    """Problems move each other by a given (N, N) matrix, the same in all replicates."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Read the matrix and start at the population's probabilities.

        Raises:
            UserError: the file cannot be read, or is no finite symmetric (N, N) matrix.
        """
        if config.kernel is None:
            raise UserError("kernel: must be given with policy = kernel")
        self._k_NN = read_kernel(config.kernel, config.n_problems)
        self._z_RNA = np.log(population.p0_RNA)
        self._place_RN2 = np.stack([population.truth_RN, population.attractor_RN], axis=-1)
        self._neg_transfer = float(config.neg_transfer)
        self._optimizer = make_optimizer(config)
        self._moments = moments(self._optimizer, *self._z_RNA.shape)

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Implement `Policy.probabilities`."""
        return softmax(self._z_RNA, problems_RP, out_RPA)

    def update(
        self,
        problems_RP: Ints,
        step: float,
        gradient_RPA: Floats,
        drop_RP: Bools | None = None,
    ) -> Floats:
        """Implement `Policy.update`."""
        norm_RP = np.empty(problems_RP.shape)
        drop_RP = dropped(drop_RP, problems_RP.shape)
        _update(
            self._z_RNA,
            self._place_RN2,
            self._k_NN,
            self._neg_transfer,
            self._optimizer,
            self._moments,
            problems_RP,
            step,
            gradient_RPA,
            drop_RP,
            norm_RP,
        )
        return norm_RP


@njit(cache=True)
def _update(
    z_RNA: Floats,
    place_RN2: Ints,
    k_NN: Floats,
    neg_transfer: float,
    optimizer: Optimizer,
    moments: Moments,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    drop_RP: Bools,
    norm_RP: Floats,
) -> None:
    R, P, A = gradient_RPA.shape
    N = k_NN.shape[0]
    change_A = np.empty(A)
    lift_N2 = np.empty((N, 2))
    for r in range(R):
        for first in range(0, P, optimizer.mini_batch):
            last = min(first + optimizer.mini_batch, P)
            norm_RP[r, first:last] = 0.0
            kept = count_kept(drop_RP[r], first, last)
            if kept == 0:
                continue
            whole = own_square(gradient_RPA[r], drop_RP[r], first, last)
            scale = mean_and_clip(optimizer, whole, kept)
            lift_N2[:] = 0.0
            square = 0.0
            for p in range(first, last):
                if drop_RP[r, p]:
                    continue
                n = problems_RP[r, p]
                change_A[:] = 0.0
                step_row(change_A, gradient_RPA[r, p], scale, step, optimizer, moments, r, n)
                _pass_on(change_A, k_NN[n], n, place_RN2[r, n], neg_transfer, lift_N2)
                # The two roles' own shares are in lift_N2, so that mini-batches add up first.
                for a in range(A):
                    if a != place_RN2[r, n, 0] and a != place_RN2[r, n, 1]:
                        moved = k_NN[n, n] * change_A[a]
                        z_RNA[r, n, a] += moved
                        square += moved * moved
            for i in range(N):
                for s in range(2):
                    z_RNA[r, i, place_RN2[r, i, s]] += lift_N2[i, s]
                    square += lift_N2[i, s] * lift_N2[i, s]
            norm_RP[r, first:last] = np.sqrt(square)


@njit
def _pass_on(
    change_A: Floats,
    k_N: Floats,
    n: int,
    place_2: Ints,
    neg_transfer: float,
    lift_N2: Floats,
) -> None:
    """Add what problem `n`'s change gives to both roles of all problems, itself included."""
    for s in range(2):
        change = change_A[place_2[s]]
        passed = change * neg_transfer if change < 0 else change
        for i in range(k_N.shape[0]):
            lift_N2[i, s] += k_N[i] * (change if i == n else passed)


def read_kernel(path: str, n_problems: int) -> Floats:
    """Read a symmetric coupling matrix.

    Args:
        path: a `.npy` file (read without pickle) or a `.csv` file of plain numbers.
        n_problems: N.

    Returns:
        (N, N).

    Raises:
        UserError: names the setting, the file, the defect and where it is.
    """
    where = f"kernel: {path}"
    k_NN = _read_matrix(path, where)
    if k_NN.shape != (n_problems, n_problems):
        raise UserError(
            f"{where} has shape {k_NN.shape}, must be n_problems x n_problems = "
            f"({n_problems}, {n_problems})"
        )
    _check_matrix(k_NN, where)
    return k_NN


def _read_matrix(path: str, where: str) -> Floats:
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise UserError(f"{where} is neither a .npy nor a .csv file")
    try:
        if suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter=",", dtype=np.float64, ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where} cannot be read ({reason})") from error
    if found.dtype.kind not in "fiu":
        raise UserError(f"{where} holds {found.dtype}, must hold real numbers")
    return np.ascontiguousarray(found, np.float64)


def _check_matrix(k_NN: Floats, where: str) -> None:
    if (bad := np.argwhere(~np.isfinite(k_NN))).size:
        i, j = bad[0]
        raise UserError(f"{where}: entry [{i}, {j}] is {k_NN[i, j]}, must be a finite number")
    if (bad := np.flatnonzero(k_NN.diagonal() < 0)).size:
        i = bad[0]
        raise UserError(f"{where}: entry [{i}, {i}] is {k_NN[i, i]:g}, must be at least 0")
    uneven = np.abs(k_NN - k_NN.T) > _SYMMETRY * np.abs(k_NN).max(initial=0.0)
    if (bad := np.argwhere(uneven)).size:
        i, j = bad[0]
        raise UserError(
            f"{where} is not symmetric: [{i}, {j}] is {k_NN[i, j]:g}, [{j}, {i}] is "
            f"{k_NN[j, i]:g}; give (k + k.T) / 2"
        )
