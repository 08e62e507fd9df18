"""Monte Carlo simulation of the two-answer process: many independent problems side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.theory.process import Floats, Process, check_count, logit

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_Z_95 = 1.959963984540054


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Runs:
    """The outcome of R independent problems that started alike."""

    lost_R: Bools
    """(R,) the logit ended below 0."""
    flips_R: Ints
    """(R,) label changes since visit 0."""
    most_flips_R: Ints
    """(R,) the most label changes within any W visits in a row."""
    extinct_at_R: Ints
    """(R,) visits until either answer was extinct, -1 where neither was within T visits."""
    extinct_wrong_R: Bools
    """(R,) the correct answer was the first to become extinct."""
    flip_rate_T: Floats
    """(T,) share of the problems whose label changed at visit 1, 2, .. T."""
    wrong_T: Floats
    """(T,) share of the problems whose label was wrong at visit 1, 2, .. T."""
    n_open: int
    """Problems that had not reached the lock-in barrier after T visits."""

    @property
    def degraded_R(self) -> Bools:
        """(R,) first label correct, last one wrong."""
        return self.lost_R & (self.flips_R % 2 == 1)


def monte_carlo(
    p0: float,
    process: Process,
    n_runs: int = 20_000,
    *,
    rng: np.random.Generator,
    max_visits: int = 2000,
    delta: float = 0.01,
    window: int = 5,
) -> Runs:
    """Draw the process until every problem is locked in or the visits are used up.

    A problem is locked in where fewer than 1e-7 of its moves go back; it is then left alone.

    Args:
        p0: chance of the correct answer, in (0, 1).
        process: the two-answer problem.
        n_runs: R.
        rng: source of all random numbers.
        max_visits: T, the most visits of one problem.
        delta: an answer is extinct once it wins a vote with less than this probability.
        window: W in visits, at most 62.

    Raises:
        UserError: a value is out of bounds.
    """
    x0 = logit(p0)
    check_count("n_runs", n_runs, 1)
    check_count("max_visits", max_visits, 1)
    check_count("window", window, 1, 62)
    problems = _Problems(x0, process, n_runs, rng, delta, window)
    flip_rate_T, wrong_T = np.zeros(max_visits), np.zeros(max_visits)
    for t in range(max_visits):
        flip_rate_T[t] = problems.visit(t + 1) / n_runs
        wrong_T[t] = 1.0 - problems.correct_R.mean()
        if problems.open_P.size == 0:
            wrong_T[t:] = wrong_T[t]
            break
    return problems.outcome(flip_rate_T, wrong_T)


def proportion(hits: Bools) -> Interval:
    """Share of true entries with Wilson's 95 % interval; NaN for no entries."""
    n = hits.size
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    share, z2 = float(hits.mean()), _Z_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def average(values: NDArray[np.number]) -> Interval:
    """Mean with its normal 95 % interval; NaN where there are no entries, or no spread."""
    if values.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if np.all(values == values[0]):
        return Interval(mean, math.nan, math.nan)
    half = _Z_95 * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(mean, mean - half, mean + half)


class _Problems:
    """The state of all problems; only those that are not locked in yet are visited."""

    def __init__(
        self,
        x0: float,
        process: Process,
        n_runs: int,
        rng: np.random.Generator,
        delta: float,
        window: int,
    ) -> None:
        self.process, self.rng = process, rng
        self.barrier, self.extinct = process.barrier(1e-7), process.extinction(delta)
        self.recent_mask = np.int64((1 << window) - 1)
        self.x_R = np.full(n_runs, x0)
        self.correct_R, _ = self._vote(self.x_R)
        self.flips_R = np.zeros(n_runs, np.int64)
        self.most_flips_R = np.zeros(n_runs, np.int64)
        self.recent_R = np.zeros(n_runs, np.int64)
        self.extinct_at_R = np.where(np.abs(self.x_R) >= self.extinct, 0, -1)
        self.extinct_wrong_R = (self.extinct_at_R == 0) & (self.x_R < 0)
        self.open_P = np.flatnonzero(np.abs(self.x_R) < self.barrier)

    def visit(self, visit: int) -> int:
        """Vote, move and record once; return the number of labels that changed."""
        at_P = self.open_P
        correct_P, move_P = self._vote(self.x_R[at_P])
        flipped_P = correct_P != self.correct_R[at_P]
        self.correct_R[at_P] = correct_P
        self.flips_R[at_P] += flipped_P
        recent_P = (self.recent_R[at_P] << 1 | flipped_P) & self.recent_mask
        self.recent_R[at_P] = recent_P
        in_window_P = np.bitwise_count(recent_P)
        self.most_flips_R[at_P] = np.maximum(self.most_flips_R[at_P], in_window_P)
        x_P = self.x_R[at_P] + move_P
        self.x_R[at_P] = x_P
        first_P = (self.extinct_at_R[at_P] < 0) & (np.abs(x_P) >= self.extinct)
        self.extinct_at_R[at_P[first_P]] = visit
        self.extinct_wrong_R[at_P[first_P]] = x_P[first_P] < 0
        self.open_P = at_P[np.abs(x_P) < self.barrier]
        return int(flipped_P.sum())

    def outcome(self, flip_rate_T: Floats, wrong_T: Floats) -> Runs:
        """Return the outcome after the last visit."""
        return Runs(
            lost_R=self.x_R < 0,
            flips_R=self.flips_R,
            most_flips_R=self.most_flips_R,
            extinct_at_R=self.extinct_at_R,
            extinct_wrong_R=self.extinct_wrong_R,
            flip_rate_T=flip_rate_T,
            wrong_T=wrong_T,
            n_open=self.open_P.size,
        )

    def _vote(self, x_P: Floats) -> tuple[Bools, Floats]:
        """Return (P,) flags, true where the correct answer is the label, and (P,) logit moves."""
        process = self.process
        p_P = 1.0 / (1.0 + np.exp(-x_P))
        sampled_P = self.rng.binomial(process.n_samples, p_P)
        n_rest = process.n_votes - process.n_samples
        votes_P = sampled_P + (self.rng.binomial(n_rest, p_P) if n_rest else 0)
        coin_P = self.rng.random(x_P.size) < 0.5
        twice_P = 2 * votes_P
        correct_P = (twice_P > process.n_votes) | ((twice_P == process.n_votes) & coin_P)
        fewer_P = np.minimum(sampled_P, process.n_samples - sampled_P)
        size_P = process.sizes()[fewer_P]
        return correct_P, np.where(correct_P, size_P, -size_P)
