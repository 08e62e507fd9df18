"""The exact two-answer Markov chain: who wins, for how long the loser can win, and flips.

The logit is continuous, so a function of it is kept on a uniform grid. Probabilities are smooth in
the logit and interpolated by cubics: halving the spacing changes them by less than 1e-6. Exit times
jump at the two ends, so they use a finer, linear grid that ends exactly there: halving its spacing
changes a mean time by less than 1 % (0.2 % in most cells). `refine` divides the spacing.

The closed forms are those of the diffusion limit: drift `2 * step * sqrt(p q) * s(p)` a visit, s
the probability that the correct answer wins the vote minus that it loses, and variance
`4 * step**2 * p q`. They linearise the drift at p = 1/2, with s(p) = x * sqrt(V / (2 pi)) (many
votes) and (K - 1) / K = 1 (many samples). Times are in visits.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from lab.base.errors import UserError
from sim.theory.process import Floats, Moves, Process, check_count, logit, lu, moves, reader

Method = Literal["chain", "diffusion"]

_SMOOTH_CELLS = 24
_JUMPY_CELLS = 400
_RAREST = 1e-12


class LockIn(NamedTuple):
    """Probability to end on the wrong answer, from every starting logit."""

    x_N: Floats
    """(N,) grid; beyond its ends a problem is locked in (share of backward moves < 1e-10)."""
    wrong_N: Floats

    def at(self, p0: ArrayLike) -> Floats:
        """Probability for each starting chance of the correct answer, in the shape of `p0`."""
        p0 = np.asarray(p0, np.float64)
        x_E = np.array([logit(float(p)) for p in p0.ravel()])
        wrong_E = reader(self.x_N, np.clip(x_E, *self.x_N[[0, -1]])) @ self.wrong_N
        wrong_E = np.where(x_E > self.x_N[-1], 0.0, np.where(x_E < self.x_N[0], 1.0, wrong_E))
        return np.clip(wrong_E, 0.0, 1.0).reshape(p0.shape)


class Window(NamedTuple):
    """Extinction window: mean visits for which the losing answer can win votes, from one `p0`."""

    visits: float
    """Until either answer is extinct: the time to lock-in."""
    visits_lost: float
    """The same where the correct answer is the first to become extinct; else NaN."""
    lost: float
    """Probability that the correct answer is the first to become extinct."""


class Windows(NamedTuple):
    """Mean windows from every starting logit between the two extinctions; see `Window`."""

    x_N: Floats
    visits_N: Floats
    lost_N: Floats
    visits_lost_N: Floats
    """(N,) mean visits, counted as 0 in the problems where the wrong answer is the first."""

    def at(self, p0: float) -> Window:
        """From the chance `p0` of the correct answer."""
        x0 = logit(p0)
        if abs(x0) >= self.x_N[-1]:
            return Window(0.0, math.nan, 0.0) if x0 > 0 else Window(0.0, 0.0, 1.0)
        read = reader(self.x_N, np.array([x0]), 2)
        columns = (self.visits_N, self.lost_N, self.visits_lost_N)
        visits, lost, part = (float((read @ f_N)[0]) for f_N in columns)
        return Window(visits, part / lost if lost > 0 else math.nan, lost)


def smooth_moves(process: Process, refine: int = 1) -> Moves:
    """The visit's operator between the lock-in barriers, for smooth functions."""
    # Resolves the narrower of the two widths over which lock-in turns, the diffusion's sigma_x and
    # one vote's 2 / sqrt(V), and the moves themselves.
    root = math.sqrt(process.n_votes)
    sigma = math.sqrt(process.step * math.sqrt(math.pi / 2) / root)
    spacing = min(min(sigma, 2.0 / root) / _SMOOTH_CELLS, process.step / 2.0) / refine
    return moves(process, process.barrier(), spacing, order=4)


def solve_lock_in(visit: Moves) -> LockIn:
    """Solve for the probability of ending on the wrong answer, from `smooth_moves`."""
    # Visits that do not move the logit cannot change it, so the equations run over moves alone.
    return LockIn(visit.x_N, lu(np.add(*visit.move_N), *visit.go_NN).solve(visit.out_N[1]))


def windows(process: Process, delta: float = 0.01) -> Windows:
    """Mean windows; an answer is extinct once it wins a vote with a probability below `delta`."""
    end = process.extinction(delta)
    spacing = min(process.step / 20.0, end / _JUMPY_CELLS)
    visit = moves(process, end, spacing, order=2)
    chain = lu(np.add(*visit.move_N), *visit.go_NN)
    lost_N, visits_N = chain.solve(visit.out_N[1]), chain.solve(np.ones_like(visit.x_N))
    return Windows(visit.x_N, visits_N, lost_N, chain.solve(lost_N))


def wrong_by_visit(p0: float, process: Process, n_visits: int) -> Floats:
    """(T,) probability that the label of visit 1, 2, .. T is wrong."""
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    visit = smooth_moves(process)
    if abs(x0) >= visit.x_N[-1]:
        return np.full(n_visits, float(x0 < 0))
    wrong_N = process.wrong_vote(visit.x_N)
    wrong_T = np.empty(n_visits)
    for t in range(n_visits):
        wrong_T[t] = visit.value(wrong_N, x0)
        wrong_N = visit.after(0, wrong_N) + visit.after(1, wrong_N, beyond=1.0)
    return wrong_T


def lock_in(
    p0: float, step: float, n_votes: int, n_samples: int, method: Method = "chain"
) -> float:
    """Probability that a two-answer problem ends on the wrong answer for ever.

    Args:
        method: `chain` is exact (error below 1e-6); `diffusion` the closed form for a small
            step * sqrt(V), which does not depend on K, see `lock_in_diffusion`.
    """
    process = Process(step, n_votes, n_samples)
    if method == "chain":
        return float(solve_lock_in(smooth_moves(process)).at(p0))
    if method == "diffusion":
        return lock_in_diffusion(p0, step, n_votes)
    raise UserError(f"theory: method = {method!r} must be 'chain' or 'diffusion'")


def escape_rate(step: float, n_votes: int) -> float:
    """Rate per visit at which a small logit grows, `lambda = .399 * step * sqrt(V)`.

    Valid while |x| < 1 / sqrt(V), where s is linear in x, and V >= 8 or so.
    """
    return step * math.sqrt(n_votes / (2.0 * math.pi))


def separatrix_width(step: float, n_votes: int) -> float:
    """Width in logit of the zone where either answer can win.

    `sigma_x = sqrt(step / (.798 * sqrt(V)))`, from variance `step**2` and rate `lambda`. Valid
    while it is below the 2 / sqrt(V) over which the drift saturates: step * sqrt(V) < 1.
    """
    return step / math.sqrt(2.0 * escape_rate(step, n_votes))


def lock_in_diffusion(p0: float, step: float, n_votes: int) -> float:
    """Probability to end on the wrong answer, `Phi(-x0 / sigma_x)`.

    Valid for small step * sqrt(V): against the exact chain with K = V = 64 the error is at most
    .004 up to step * sqrt(V) = .25, .013 at 1, .03 at 2.5, .11 at 8. A small K adds an error at
    every step size, .01 at K = 8. As the step grows the truth tends to `Process.wrong_first_move`.
    """
    return float(ndtr(-logit(p0) / separatrix_width(step, n_votes)))


def window_closed_form(p0: float, step: float, n_votes: int, delta: float = 0.01) -> float:
    """Visits until the loser wins a vote with probability below `delta`.

    `ln(x_d / max(|x0|, sigma_x)) / lambda` with `x_d = 2 * z_delta / sqrt(V)`, 0 where the start
    is beyond x_d. A scale, not a mean: it leaves out the slowing of the drift beyond 1 / sqrt(V),
    the time spent within sigma_x, and the way across 1/2. At V = 64, step .1, p0 = .52 it gives
    5.0; the exact mean, see `windows`, is 8.5, and 9.9 for the problems that are lost.
    """
    extinct = -2.0 * float(ndtri(delta)) / math.sqrt(n_votes)
    start = max(abs(logit(p0)), separatrix_width(step, n_votes))
    return max(0.0, math.log(extinct / start)) / escape_rate(step, n_votes)


class FlipLaw(NamedTuple):
    """Joint law of a problem's end and its number of flips over all time, from visit 0 on."""

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
    """(T,) share of such problems whose label changes at visit 1, 2, .. T: a run's FR by visit."""
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
        # What leaves the grid counts 0: its label has reached the side on which it will stay.
        from_up_N = from_down_N = visit.after(0, from_up_N) + visit.after(1, from_down_N)
        rate_T[t] = visit.value(from_up_N, x0)
    return rate_T


def flip_law(p0: float, process: Process, max_flips: int = 40) -> FlipLaw:
    """Law of the number of flips over all time, together with the end."""
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
    """Shares of problems whose flip rate exceeds a threshold at some visit; NaN for no problem."""

    of_lost: float
    """Among the problems that end on the wrong answer."""
    of_kept: float


def detection(
    p0: float, process: Process, n_visits: int, *, window: int = 5, tau: float = 0.3
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
    return Detection(1.0 - float(lost_2.sum()) / lost, 1.0 - float(kept_2.sum()) / (1.0 - lost))


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
    rest = dict.fromkeys(itertools.product(pasts, (0, 1)), end_N)
    for _ in range(n_visits):
        after = {key: visit.after(key[1], f_N, beyond[key[1]]) for key, f_N in rest.items()}
        before, rest = rest, {}
        for past, old in before:
            # A flip too many in the last W visits would be detected.
            news = [new for new in (0, 1) if past.bit_count() + (new != old) <= most]
            nexts = [after[(past << 1 | (new != old)) & mask, new] for new in news]
            rest[past, old] = sum(nexts, np.zeros_like(end_N))
        if all(np.abs(rest[key] - before[key]).max() < _RAREST for key in rest):
            break
    return np.array([visit.value(rest[0, label], x0) for label in (0, 1)])


def single_flip_share(p0: ArrayLike, process: Process) -> Floats:
    """Share of the degraded problems that flip exactly once, in the shape of `p0`.

    NaN where fewer than one problem in 1e12 degrades, which the grid does not resolve.
    """
    p0 = np.asarray(p0, np.float64)
    x0_E = np.array([logit(float(p)) for p in p0.ravel()])
    visit = smooth_moves(process)
    one_N = _ends_wrong(process, visit, 1)[1]
    degraded_N = process.wrong_vote(-visit.x_N) * solve_lock_in(visit).wrong_N
    share_N = one_N / np.where(degraded_N > _RAREST, degraded_N, math.nan)
    share_E = reader(visit.x_N, np.clip(x0_E, *visit.x_N[[0, -1]])) @ share_N
    share_E = np.where(np.abs(x0_E) < visit.x_N[-1], share_E, math.nan)
    return share_E.reshape(p0.shape)


def _ends_wrong(process: Process, visit: Moves, max_flips: int) -> list[Floats]:
    """For 0 .. max_flips: (N,) probability of that many flips after visit 0 and a wrong end."""
    # From logit x and label L, G_j(x, L) is the probability of j more flips and a wrong end.
    # Splitting the next visit by its label gives a system per label, where j follows from j - 1.
    moves_N = np.add(*visit.move_N)
    up_solver = lu(moves_N + visit.stay_N[1], visit.go_NN[0])
    down_solver = lu(moves_N + visit.stay_N[0], visit.go_NN[1])
    wrong_N, right_N = process.wrong_vote(visit.x_N), process.wrong_vote(-visit.x_N)
    up_N = np.zeros_like(visit.x_N)
    down_N = down_solver.solve(visit.out_N[1])
    ends_FN = [right_N * up_N + wrong_N * down_N]
    for flips in range(1, max_flips + 1):
        via_down_N = visit.after(1, down_N, beyond=float(flips == 1))
        up_N, down_N = up_solver.solve(via_down_N), down_solver.solve(visit.after(0, up_N))
        ends_FN.append(right_N * up_N + wrong_N * down_N)
    return ends_FN
