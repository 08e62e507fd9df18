"""The law of flips and times to lock-in: totals, and the chain against problems that are drawn."""

import math
from functools import cache

import numpy as np
import pytest

from sim.theory import Process, flip_law, flip_rate_by_visit, lock_in, windows
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
def test_mean_time_to_lock_in(cell: tuple[int, int, float, float]):
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
def test_law_of_the_number_of_flips(cell: tuple[int, int, float, float]):
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


def test_a_start_beyond_the_barrier_is_settled():
    runs = draw(1e-6, Process(0.1, 64, 32), 50)
    assert np.all(runs.lost_R & runs.extinct_wrong_R & (runs.extinct_at_R == 0))


def test_intervals():
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
    ("n_votes", "n_samples", "step", "p0"),
    [(64, 32, 0.1, 0.52), (64, 64, 0.3, 0.55), (8, 8, 0.5, 0.4), (9, 4, 1.0, 0.6)],
)
def test_the_flip_law_adds_up(n_votes: int, n_samples: int, step: float, p0: float):
    process = Process(step, n_votes, n_samples)
    law = flip_law(p0, process, max_flips=60)
    lost = lock_in(p0, step, n_votes, n_samples)
    assert law.lost_F.sum() == pytest.approx(lost, abs=1e-6)
    assert law.kept_F.sum() == pytest.approx(1 - lost, abs=1e-6)
    # A problem that ends on the other label has flipped an odd number of times.
    wrong_first = float(process.wrong_vote(math.log(p0 / (1 - p0)))[0])
    assert law.lost_F[1::2].sum() == pytest.approx(law.degraded, abs=1e-6)
    assert law.lost_F[::2].sum() == pytest.approx(lost * wrong_first, abs=1e-6)
    # Mean number of flips, counted per problem and per visit.
    flips = float((law.lost_F + law.kept_F) @ np.arange(61))
    assert flip_rate_by_visit(p0, process, 400).sum() == pytest.approx(flips, abs=1e-5)


def test_what_cannot_degrade_has_no_share():
    share = single_flip_share(np.array([[0.5, 0.9999]]), Process(0.1, 64, 32))
    assert share.shape == (1, 2)
    assert math.isnan(share[0, 1]) and not math.isnan(share[0, 0])
    law = flip_law(0.9999, Process(0.1, 64, 32))
    assert (law.kept_F[0], law.lost_F.sum(), law.degraded) == (1.0, 0.0, 0.0)
    assert math.isnan(law.single_share)
    assert flip_rate_by_visit(0.9999, Process(0.1, 64, 32), 3).tolist() == [0.0, 0.0, 0.0]
