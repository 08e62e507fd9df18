"""The law of the flip rate of the two-answer chain: how often the label changes, and in whom."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.linalg import SuperLU, splu

from lab.base.errors import UserError
from sim.theory.chain import smooth_moves, solve_lock_in
from sim.theory.process import Floats, Moves, Process, check_count, interpolate, logit, system

_RAREST = 1e-12


class FlipLaw(NamedTuple):
    """Joint law of a problem's number of flips over all time and of its end.

    Flips are counted from the label of visit 0 on, so a problem that ends on the other label has
    flipped an odd number of times, one that ends on its first label an even number.
    """

    lost_F: Floats
    """(F,) probability of 0, 1, .. F - 1 flips and to end on the wrong answer."""
    kept_F: Floats
    """(F,) probability of 0, 1, .. F - 1 flips and to end on the correct answer."""
    degraded: float
    """Probability that the correct answer was the first label and the wrong one is the last; its
    share beyond F - 1 flips included."""

    @property
    def single_share(self) -> float:
        """Share of the degraded problems that flip exactly once; NaN if none degrades."""
        return float(self.lost_F[1]) / self.degraded if self.degraded > 0 else math.nan


def flip_rate_by_visit(p0: float, process: Process, n_visits: int) -> Floats:
    """(T,) share of such problems whose label changes at visit 1, 2, .. T.

    This is the run's FR by visit; a problem's windowed FR has the mean of the last W of them.
    """
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    visit = smooth_moves(process)
    rate_T = np.zeros(n_visits)
    if abs(x0) >= visit.x_N[-1]:
        return rate_T
    # A flip at the next visit depends on the old label, later ones only through the next label.
    from_up_N, from_down_N = process.wrong_vote(visit.x_N), process.wrong_vote(-visit.x_N)
    wrong = visit.value(from_up_N, x0)
    rate_T[0] = 2.0 * wrong * (1.0 - wrong)
    for t in range(1, n_visits):
        from_up_N = from_down_N = _after_visit(visit, from_up_N, from_down_N)
        rate_T[t] = visit.value(from_up_N, x0)
    return rate_T


def flip_law(p0: float, process: Process, max_flips: int = 40) -> FlipLaw:
    """Law of the number of flips over all time, together with the end.

    Let `G_j(x, L)` be the probability of exactly j more flips and of ending wrong, from logit x
    and label L. Splitting the next visit by its label gives one triangular system per label, in
    which j flips follow from j - 1.
    """
    x0 = logit(p0)
    check_count("max_flips", max_flips, 1)
    visit = smooth_moves(process)
    if abs(x0) >= visit.x_N[-1]:
        certain_F = np.eye(1, max_flips + 1)[0]
        return FlipLaw(certain_F * (x0 < 0), certain_F * (x0 > 0), 0.0)
    ends_FN = _ends_wrong(process, visit, max_flips)
    lost_F = np.array([visit.value(end_N, x0) for end_N in ends_FN])
    # By symmetry the correct answer wins from x0 as the wrong one does from -x0.
    kept_F = np.array([visit.value(end_N, -x0) for end_N in ends_FN])
    # Visit 0 moves nothing, so the first label is independent of the end.
    lost = float(solve_lock_in(visit).at(p0))
    degraded = lost * float(process.wrong_vote(-x0)[0])
    return FlipLaw(np.clip(lost_F, 0.0, 1.0), np.clip(kept_F, 0.0, 1.0), degraded)


class Detection(NamedTuple):
    """Shares of problems whose flip rate exceeds a threshold at some visit, by their end.

    NaN where no problem has that end.
    """

    of_lost: float
    """Among the problems that end on the wrong answer."""
    of_kept: float
    """Among the problems that end on the correct answer."""


def detection(
    p0: float,
    process: Process,
    n_visits: int,
    *,
    window: int = 5,
    tau: float = 0.3,
) -> Detection:
    """Probability that a problem's flip rate exceeds tau within T visits of plain TTRL.

    The flip rate is the share of the last W visits at which the label changed, where visit 0 sets
    the first label (docs/method.md, section 3); `window=1` is that of the authors' release. A lost
    problem that is never detected is one on which neither MPS nor RCSU acts.

    Args:
        window: W in visits, at most 16.
        tau: threshold of the flip rate, in [0, 1).
    """
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    check_count("window", window, 1, 16)
    if not 0 <= tau < 1:
        raise UserError(f"theory: tau = {tau} must be in [0, 1)")
    visit = smooth_moves(process)
    if abs(x0) >= visit.x_N[-1]:
        return Detection(0.0 if x0 < 0 else math.nan, 0.0 if x0 > 0 else math.nan)
    most = next(flips for flips in range(window) if (flips + 1) / window > tau)
    lost_N = solve_lock_in(visit).wrong_N
    lost, wrong = visit.value(lost_N, x0), float(process.wrong_vote(x0)[0])
    # Visit 0 moves nothing, so the first label is independent of the end.
    first_2 = np.array([1.0 - wrong, wrong])
    lost_2 = first_2 * _undetected(visit, x0, n_visits, window, most, lost_N)
    kept_2 = first_2 * _undetected(visit, x0, n_visits, window, most, 1.0 - lost_N)
    return Detection(
        1.0 - float(lost_2.sum()) / lost,
        1.0 - float(kept_2.sum()) / (1.0 - lost),
    )


def _undetected(
    visit: Moves, x0: float, n_visits: int, window: int, most: int, end_N: Floats
) -> Floats:
    """(2,) probability of an end and of at most `most` flips in any W visits, by first label.

    The recursion runs backwards over the logit, the label (0 correct, 1 wrong) and the past: a bit
    for each of the last W - 1 visits, set where the label changed. `end_N` is the probability of
    the end from each logit, 0 or 1 beyond the grid, where the label no longer changes.
    """
    mask = (1 << (window - 1)) - 1
    pasts = [past for past in range(mask + 1) if past.bit_count() <= most]
    beyond = np.round([end_N[-1], end_N[0]])
    stays, operators = (visit.stay_up_N, visit.stay_down_N), (visit.up_NN, visit.down_NN)
    outs = (visit.up_out_N, visit.down_out_N)
    rest = dict.fromkeys(itertools.product(pasts, (0, 1)), end_N)
    for _ in range(n_visits):
        after = {
            (past, label): operators[label] @ f_N + stays[label] * f_N + beyond[label] * outs[label]
            for (past, label), f_N in rest.items()
        }
        before, rest = (
            rest,
            {
                (past, old): sum(
                    (
                        after[(past << 1 | (new != old)) & mask, new]
                        for new in (0, 1)
                        if past.bit_count() + (new != old) <= most
                    ),
                    np.zeros_like(end_N),
                )
                for past, old in rest
            },
        )
        if all(np.abs(rest[key] - before[key]).max() < _RAREST for key in rest):
            break
    return np.array([visit.value(rest[0, label], x0) for label in (0, 1)])


def single_flip_share(p0: ArrayLike, process: Process) -> Floats:
    """Share of the degraded problems that flip exactly once, in the shape of `p0`.

    Degraded means that the first label was correct and the last is wrong. NaN where fewer than one
    problem in 1e12 degrades, which the grid does not resolve.
    """
    p0 = np.asarray(p0, np.float64)
    x0_E = np.array([logit(float(p)) for p in p0.ravel()])
    visit = smooth_moves(process)
    one_N = _ends_wrong(process, visit, 1)[1]
    degraded_N = process.wrong_vote(-visit.x_N) * solve_lock_in(visit).wrong_N
    share_N = np.full(visit.x_N.size, math.nan)
    np.divide(one_N, degraded_N, out=share_N, where=degraded_N > _RAREST)
    inside_E = np.abs(x0_E) < visit.x_N[-1]
    share_E = np.full(x0_E.size, math.nan)
    share_E[inside_E] = interpolate(visit.x_N, share_N, x0_E[inside_E])
    return share_E.reshape(p0.shape)


def _ends_wrong(process: Process, visit: Moves, max_flips: int) -> list[Floats]:
    """For 0 .. max_flips: (N,) probability of that many flips after visit 0 and a wrong end."""
    up_solver = _solver(visit.up_N + visit.down_N + visit.stay_down_N, visit.up_NN)
    down_solver = _solver(visit.up_N + visit.down_N + visit.stay_up_N, visit.down_NN)
    wrong_N, right_N = process.wrong_vote(visit.x_N), process.wrong_vote(-visit.x_N)
    up_N = np.zeros_like(visit.x_N)
    down_N = down_solver.solve(visit.down_out_N)
    ends_FN = [right_N * up_N + wrong_N * down_N]
    for flips in range(1, max_flips + 1):
        leaves_N = visit.down_out_N if flips == 1 else 0.0
        via_down_N = visit.down_NN @ down_N + visit.stay_down_N * down_N + leaves_N
        via_up_N = visit.up_NN @ up_N + visit.stay_up_N * up_N
        up_N, down_N = up_solver.solve(via_down_N), down_solver.solve(via_up_N)
        ends_FN.append(right_N * up_N + wrong_N * down_N)
    return ends_FN


def _after_visit(visit: Moves, from_up_N: Floats, from_down_N: Floats) -> Floats:
    """(N,) mean over the next visit of a function of the logit and the label after it.

    What leaves the grid counts 0: its label has reached the side on which it will stay.
    """
    by_up_N = visit.up_NN @ from_up_N + visit.stay_up_N * from_up_N
    return by_up_N + visit.down_NN @ from_down_N + visit.stay_down_N * from_down_N


def _solver(diagonal_N: Floats, operator_NN: csr_array) -> SuperLU:
    return splu(system(diagonal_N, operator_NN))
