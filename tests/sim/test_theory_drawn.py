"""The chain against problems that the simulator draws: times to lock-in and numbers of flips."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from lab.base.errors import UserError
from sim.theory import Process, flip_law, windows
from sim.theory.chain import single_flip_share
from sim.theory.tables import Runs, average, draw, proportion

N_RUNS = 20_000
MANY = 4
"""Standard errors allowed where one test function makes more than a hundred comparisons."""
CELLS = [
    # V, K, step, p0
    (64, 64, 0.1, 0.52),
    (64, 8, 0.3, 0.55),
    (16, 5, 0.5, 0.55),
    (9, 4, 0.5, 0.4),
    (4, 4, 3.0, 0.6),
]


@cache
def _drawn(n_votes: int, n_samples: int, step: float, p0: float) -> Runs:
    return draw(p0, Process(step, n_votes, n_samples), N_RUNS, seed=3, max_visits=600)


def _share_error(share: float, n: int = N_RUNS) -> float:
    # Ten hits are the least for which a normal error says anything.
    return math.sqrt(max(share * (1 - share), 10 / n) / n)


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


def test_a_start_beyond_the_barrier_is_settled() -> None:
    runs = draw(1e-6, Process(0.1, 64, 32), 50)
    assert np.all(runs.lost_R & runs.extinct_wrong_R & (runs.extinct_at_R == 0))


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
    ("change", "named"), [({"n_runs": 0}, "n_runs"), ({"max_visits": 0}, "max_visits")]
)
def test_bad_input_is_named(change: dict, named: str) -> None:
    with pytest.raises(UserError, match=f"theory: {named} = "):
        draw(0.5, Process(0.1, 8, 8), **change)
