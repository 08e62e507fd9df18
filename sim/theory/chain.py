"""The exact two-answer Markov chain: who wins in the end, and how long the loser can still win.

The logit is continuous, so a function of it is kept on a uniform grid. Probabilities are smooth in
the logit and interpolated by cubics: halving the spacing changes them by less than 1e-6. Exit times
jump at the two ends, so they use a finer, linear grid that ends exactly there: halving its spacing
changes a mean time by less than 1 % (0.2 % in most cells). `refine` divides the spacing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import splu

from sim.theory.grid import Moves, grid, interpolate, moves, system
from sim.theory.process import Floats, Process, check_count, logit

_SMOOTH_CELLS = 24
_JUMPY_CELLS = 400


class LockIn(NamedTuple):
    """Probability to end on the wrong answer, from every starting logit."""

    x_N: Floats
    """(N,) grid; beyond its ends a problem is locked in (share of backward moves < 1e-10)."""
    wrong_N: Floats
    """(N,) probability to end on the wrong answer."""

    def at(self, p0: ArrayLike) -> Floats:
        """Probability for each starting chance of the correct answer, in the shape of `p0`.

        Raises:
            UserError: a chance is not in (0, 1).
        """
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
        """From the chance `p0` of the correct answer.

        Raises:
            UserError: `p0` is not in (0, 1).
        """
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

    Args:
        process: the two-answer problem.
        refine: divides the grid's spacing.

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


def windows(process: Process, delta: float = 0.01, refine: int = 1) -> Windows:
    """Mean time to lock-in and the width of the extinction window.

    Args:
        process: the two-answer problem.
        delta: an answer is extinct once it wins a vote with less than this probability.
        refine: divides the grid's spacing.

    Raises:
        UserError: `delta` is out of bounds, or the step is too small for the grid.
    """
    end = process.extinction(delta)
    spacing = min(process.step / 20.0, end / _JUMPY_CELLS) / refine
    visit = moves(process, grid(process, end, spacing), order=2)
    solver = splu(system(visit.up_N + visit.down_N, visit.up_NN, visit.down_NN))
    lost_N = solver.solve(visit.down_out_N)
    visits_N = solver.solve(np.ones_like(visit.x_N))
    return Windows(visit.x_N, visits_N, lost_N, solver.solve(lost_N))


def wrong_by_visit(p0: float, process: Process, n_visits: int, refine: int = 1) -> Floats:
    """(T,) probability that the label of visit 1, 2, .. T is wrong.

    Args:
        p0: chance of the correct answer, in (0, 1).
        process: the two-answer problem.
        n_visits: T.
        refine: divides the grid's spacing.

    Raises:
        UserError: a value is out of bounds, or the step is too small for the grid.
    """
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    visit = smooth_moves(process, refine)
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
