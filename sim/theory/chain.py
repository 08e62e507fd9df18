"""The exact two-answer Markov chain: who wins in the end, and how long the loser can still win.

The logit is continuous, so a function of it is kept on a uniform grid. Probabilities are smooth in
the logit and interpolated by cubics: halving the spacing changes them by less than 1e-6. Exit times
jump at the two ends, so they use a finer, linear grid that ends exactly there: halving its spacing
changes a mean time by less than 1 % (0.2 % in most cells). `refine` divides the spacing.

Closed forms of the two-answer chain in the diffusion limit, and `lock_in`.

For a small step the logit follows dx = drift dt + sqrt(variance) dB, one unit of time a visit:
drift `2 * step * sqrt(p q) * s(p)`, where s is the probability that the correct answer wins the
vote minus the probability that it loses, and variance `4 * step**2 * p q`. Its separatrix is
p = 1/2. The closed forms linearise the drift there, with s(p) = x * sqrt(V / (2 pi)) (many votes)
and (K - 1) / K = 1 (many samples). `step` is in logit per unit of standardised advantage; times are
in visits.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import splu
from scipy.special import ndtr, ndtri

from lab.base.errors import UserError
from sim.theory.process import (
    Floats,
    Moves,
    Process,
    check_count,
    grid,
    interpolate,
    logit,
    moves,
    system,
)

_SMOOTH_CELLS = 24
_JUMPY_CELLS = 400


class LockIn(NamedTuple):
    """Probability to end on the wrong answer, from every starting logit."""

    x_N: Floats
    """(N,) grid; beyond its ends a problem is locked in (share of backward moves < 1e-10)."""
    wrong_N: Floats
    """(N,) probability to end on the wrong answer."""

    def at(self, p0: ArrayLike) -> Floats:
        """Probability for each starting chance of the correct answer, in the shape of `p0`."""
        p0 = np.asarray(p0, np.float64)
        x_E = np.array([logit(float(p)) for p in p0.ravel()])
        wrong_E = interpolate(self.x_N, self.wrong_N, np.clip(x_E, self.x_N[0], self.x_N[-1]))
        wrong_E = np.where(x_E > self.x_N[-1], 0.0, np.where(x_E < self.x_N[0], 1.0, wrong_E))
        return np.clip(wrong_E, 0.0, 1.0).reshape(p0.shape)


class Window(NamedTuple):
    """Mean visits for which the losing answer can still win votes, from one `p0`."""

    visits: float
    """Until either answer is extinct: the time to lock-in."""
    visits_lost: float
    """Until the correct answer is extinct, where it is the first to become so; else NaN."""
    lost: float
    """Probability that the correct answer is the first to become extinct."""


class Windows(NamedTuple):
    """Mean windows from every starting logit between the two extinctions."""

    x_N: Floats
    """(N,) grid, from where the correct answer is extinct to where the wrong one is."""
    visits_N: Floats
    """(N,) mean visits until either answer is extinct."""
    lost_N: Floats
    """(N,) probability that the correct answer is the first."""
    visits_lost_N: Floats
    """(N,) mean visits, counted as 0 in the problems where the wrong answer is the first."""

    def at(self, p0: float) -> Window:
        """From the chance `p0` of the correct answer."""
        x0 = logit(p0)
        if abs(x0) >= self.x_N[-1]:
            return Window(0.0, math.nan, 0.0) if x0 > 0 else Window(0.0, 0.0, 1.0)
        columns = (self.visits_N, self.lost_N, self.visits_lost_N)
        at_E = np.array([x0])
        visits, lost, part = (float(interpolate(self.x_N, f_N, at_E, 2)[0]) for f_N in columns)
        return Window(visits, part / lost if lost > 0 else math.nan, lost)


def smooth_moves(process: Process, refine: int = 1) -> Moves:
    """The visit's operator between the lock-in barriers, for smooth functions.

    The spacing resolves the narrower of the two widths over which lock-in turns, the diffusion's
    `sigma_x` and one vote's `2 / sqrt(V)`, and the moves themselves.
    """
    root = math.sqrt(process.n_votes)
    sigma = math.sqrt(process.step * math.sqrt(math.pi / 2) / root)
    spacing = min(min(sigma, 2.0 / root) / _SMOOTH_CELLS, process.step / 2.0) / refine
    return moves(process, grid(process, process.barrier(), spacing), order=4)


def lock_in_chain(process: Process, refine: int = 1) -> LockIn:
    """Solve for the probability of ending on the wrong answer.

    Raises:
        UserError: the step is so small that the grid does not fit into memory.
    """
    return solve_lock_in(smooth_moves(process, refine))


def solve_lock_in(visit: Moves) -> LockIn:
    """Solve the lock-in from the visit's operator.

    Visits that do not move the logit cannot change it, so the equations run over moves alone.
    """
    matrix = system(visit.up_N + visit.down_N, visit.up_NN, visit.down_NN)
    return LockIn(visit.x_N, splu(matrix).solve(visit.down_out_N))


def windows(process: Process, delta: float = 0.01) -> Windows:
    """Mean time to lock-in and the width of the extinction window.

    Args:
        delta: an answer is extinct once it wins a vote with less than this probability.

    Raises:
        UserError: `delta` is out of bounds, or the step is too small for the grid.
    """
    end = process.extinction(delta)
    spacing = min(process.step / 20.0, end / _JUMPY_CELLS)
    visit = moves(process, grid(process, end, spacing), order=2)
    solver = splu(system(visit.up_N + visit.down_N, visit.up_NN, visit.down_NN))
    lost_N = solver.solve(visit.down_out_N)
    visits_N = solver.solve(np.ones_like(visit.x_N))
    return Windows(visit.x_N, visits_N, lost_N, solver.solve(lost_N))


def wrong_by_visit(p0: float, process: Process, n_visits: int) -> Floats:
    """(T,) probability that the label of visit 1, 2, .. T is wrong."""
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    visit = smooth_moves(process)
    if abs(x0) >= visit.x_N[-1]:
        return np.full(n_visits, float(x0 < 0))
    stay_N = visit.stay_up_N + visit.stay_down_N
    wrong_N = process.wrong_vote(visit.x_N)
    wrong_T = np.empty(n_visits)
    for t in range(n_visits):
        wrong_T[t] = visit.value(wrong_N, x0)
        moved_N = visit.up_NN @ wrong_N + visit.down_NN @ wrong_N + visit.down_out_N
        wrong_N = stay_N * wrong_N + moved_N
    return wrong_T


def lock_in(
    p0: float,
    step: float,
    n_votes: int,
    n_samples: int,
    method: Literal["chain", "diffusion"] = "chain",
) -> float:
    """Probability that a two-answer problem ends on the wrong answer for ever.

    Args:
        method: `chain` is exact (error below 1e-6); `diffusion` is the closed form for a small
            step * sqrt(V), which does not depend on K.
    """
    process = Process(step, n_votes, n_samples)
    if method == "chain":
        return float(lock_in_chain(process).at(p0))
    if method == "diffusion":
        return lock_in_diffusion(p0, step, n_votes)
    raise UserError(f"theory: method = {method!r} must be 'chain' or 'diffusion'")


def escape_rate(step: float, n_votes: int) -> float:
    """Rate per visit at which a small logit grows: `lambda = .399 * step * sqrt(V)`.

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
    every step size, .01 at K = 8. It does better than the diffusion deserves, since what it leaves
    out nearly cancels: visits are discrete (fewer wrong ends) and the drift saturates (more).
    As the step grows the truth tends to `Process.wrong_first_move`.
    """
    return float(ndtr(-logit(p0) / separatrix_width(step, n_votes)))


def window_closed_form(p0: float, step: float, n_votes: int, delta: float = 0.01) -> float:
    """Visits until the loser wins a vote with probability below `delta`.

    `ln(x_d / max(|x0|, sigma_x)) / lambda` with `x_d = 2 * z_delta / sqrt(V)`, 0 where the start
    is beyond x_d. A scale, not a mean: it leaves out the slowing of the drift beyond 1 / sqrt(V),
    the time spent within sigma_x (on average .635 / lambda from x0 = 0), and that a problem on
    its way to the other side must first cross 1/2. At V = 64, step .1, p0 = .52 it gives 5.0, the
    exact mean is 8.5, and 9.9 for the problems that are lost. `sim.theory.chain.windows` is exact.
    """
    extinct = -2.0 * float(ndtri(delta)) / math.sqrt(n_votes)
    start = max(abs(logit(p0)), separatrix_width(step, n_votes))
    return max(0.0, math.log(extinct / start)) / escape_rate(step, n_votes)
