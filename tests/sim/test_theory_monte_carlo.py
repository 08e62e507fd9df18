"""The chain against 20,000 drawn problems in each of 16 cells, within 3 standard errors."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from lab.errors import UserError
from sim.theory import (
    Process,
    flip_law,
    flip_rate_by_visit,
    lock_in,
    monte_carlo,
    single_flip_share,
    windows,
    wrong_by_visit,
)
from sim.theory.monte_carlo import Runs, average, proportion

N_RUNS = 20_000
MANY = 4
"""Standard errors allowed where one test function makes more than a hundred comparisons."""
CELLS = [
    # V, K, step, p0
    (64, 64, 0.03, 0.52),
    (64, 64, 0.1, 0.52),
    (64, 64, 0.1, 0.55),
    (64, 64, 0.3, 0.55),
    (64, 64, 1.0, 0.55),
    (64, 32, 0.1, 0.48),
    (64, 32, 0.3, 0.53),
    (64, 8, 0.3, 0.55),
    (65, 33, 0.2, 0.5),
    (32, 16, 0.15, 0.45),
    (16, 5, 0.5, 0.55),
    (9, 4, 0.5, 0.4),
    (8, 8, 0.3, 0.6),
    (8, 8, 1.0, 0.6),
    (5, 3, 2.0, 0.65),
    (4, 4, 3.0, 0.6),
]


@cache
def _drawn(n_votes: int, n_samples: int, step: float, p0: float) -> Runs:
    rng = np.random.default_rng([n_votes, n_samples, round(1000 * step), round(1000 * p0)])
    process = Process(step, n_votes, n_samples)
    return monte_carlo(p0, process, N_RUNS, rng=rng, max_visits=600)


def _share_error(share: float, n: int = N_RUNS) -> float:
    # Ten hits are the least for which a normal error says anything.
    return math.sqrt(max(share * (1 - share), 10 / n) / n)


@pytest.mark.parametrize("cell", CELLS)
def test_lock_in(cell: tuple[int, int, float, float]) -> None:
    n_votes, n_samples, step, p0 = cell
    lost = lock_in(p0, step, n_votes, n_samples)
    assert abs(_drawn(*cell).lost_R.mean() - lost) < 3 * _share_error(lost)


@pytest.mark.parametrize("cell", CELLS)
def test_mean_time_to_lock_in(cell: tuple[int, int, float, float]) -> None:
    n_votes, n_samples, step, p0 = cell
    near, runs = windows(Process(step, n_votes, n_samples)).at(p0), _drawn(*cell)
    assert np.all(runs.extinct_at_R >= 0)
    lost_R = runs.extinct_wrong_R
    assert abs(lost_R.mean() - near.lost) < 3 * _share_error(near.lost)
    for drawn, exact in (
        (runs.extinct_at_R, near.visits),
        (runs.extinct_at_R[lost_R], near.visits_lost),
    ):
        error = drawn.std() / math.sqrt(drawn.size)
        assert abs(drawn.mean() - exact) < 3 * error + 0.002 * exact


@pytest.mark.parametrize("cell", CELLS)
def test_flips_and_labels_by_visit(cell: tuple[int, int, float, float]) -> None:
    n_votes, n_samples, step, p0 = cell
    process, runs = Process(step, n_votes, n_samples), _drawn(*cell)
    rate_T, wrong_T = flip_rate_by_visit(p0, process, 12), wrong_by_visit(p0, process, 12)
    for t in (0, 1, 4, 11):
        assert abs(runs.flip_rate_T[t] - rate_T[t]) < MANY * _share_error(rate_T[t])
        assert abs(runs.wrong_T[t] - wrong_T[t]) < MANY * _share_error(wrong_T[t])


@pytest.mark.parametrize("cell", CELLS)
def test_law_of_the_number_of_flips(cell: tuple[int, int, float, float]) -> None:
    n_votes, n_samples, step, p0 = cell
    process, runs = Process(step, n_votes, n_samples), _drawn(*cell)
    law = flip_law(p0, process)
    for table_F, ends_R in ((law.lost_F, runs.lost_R), (law.kept_F, ~runs.lost_R)):
        drawn_F = np.bincount(runs.flips_R[ends_R], minlength=3)[:3] / N_RUNS
        for drawn, exact in zip(drawn_F, table_F[:3], strict=True):
            assert abs(drawn - exact) < MANY * _share_error(exact)
    once_R = runs.flips_R[runs.degraded_R] == 1
    assert abs(once_R.mean() - law.single_share) < MANY * _share_error(
        law.single_share, once_R.size
    )
    assert float(single_flip_share(p0, process)) == pytest.approx(law.single_share, abs=1e-6)


def test_one_seed_one_result() -> None:
    first, again, other = (
        monte_carlo(0.53, Process(0.2, 16, 8), 500, rng=np.random.default_rng(seed))
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first.flips_R, again.flips_R)
    assert np.array_equal(first.lost_R, again.lost_R)
    assert not np.array_equal(first.flips_R, other.flips_R)


def test_flips_within_a_window() -> None:
    process = Process(0.1, 16, 8)
    wide, narrow, single = (
        monte_carlo(0.5, process, 400, rng=np.random.default_rng(0), window=window)
        for window in (62, 5, 1)
    )
    assert np.array_equal(wide.flips_R, narrow.flips_R)
    assert np.all(narrow.most_flips_R <= np.minimum(5, wide.flips_R))
    assert np.all(wide.most_flips_R >= narrow.most_flips_R)
    assert np.array_equal(single.most_flips_R, np.minimum(1, single.flips_R))


def test_too_few_visits_leave_problems_open() -> None:
    process = Process(0.01, 16, 8)
    runs = monte_carlo(0.5, process, 100, rng=np.random.default_rng(0), max_visits=3)
    assert runs.n_open == 100
    assert np.all(runs.extinct_at_R == -1)
    assert runs.flip_rate_T.shape == (3,)


def test_a_start_beyond_the_barrier_is_settled() -> None:
    runs = monte_carlo(1e-6, Process(0.1, 64, 32), 50, rng=np.random.default_rng(0))
    assert runs.n_open == 0
    assert np.all(runs.lost_R & runs.extinct_wrong_R & (runs.extinct_at_R == 0))
    assert runs.wrong_T[0] == runs.wrong_T[-1] == 1.0


def test_intervals() -> None:
    wilson = proportion(np.array([True] * 3 + [False] * 7))
    assert wilson.value == 0.3
    # Wilson's interval for 3 of 10, as tabulated: .1078 to .6032.
    assert (wilson.low, wilson.high) == pytest.approx((0.1078, 0.6032), abs=1e-4)
    mean = average(np.array([1.0, 2.0, 3.0]))
    assert mean.value == 2.0
    assert mean.high - 2.0 == pytest.approx(1.96 / math.sqrt(3), abs=1e-3)
    assert math.isnan(proportion(np.array([], bool)).value)
    assert math.isnan(average(np.array([])).value)
    assert math.isnan(average(np.array([4.0, 4.0])).low)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"n_runs": 0}, "n_runs"), ({"max_visits": 0}, "max_visits"), ({"window": 63}, "window")],
)
def test_bad_input_is_named(change: dict, named: str) -> None:
    with pytest.raises(UserError, match=f"theory: {named} = "):
        monte_carlo(0.5, Process(0.1, 8, 8), rng=np.random.default_rng(0), **change)
