"""The law of the flip rate: totals, parity, and its own grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.base.errors import UserError
from sim.theory import Process, flip_law, flip_rate_by_visit, lock_in
from sim.theory.chain import single_flip_share


@pytest.mark.parametrize(
    ("n_votes", "n_samples", "step", "p0"),
    [(64, 32, 0.1, 0.52), (64, 64, 0.3, 0.55), (8, 8, 0.5, 0.4), (9, 4, 1.0, 0.6)],
)
def test_the_flip_law_adds_up(n_votes: int, n_samples: int, step: float, p0: float) -> None:
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


def test_what_cannot_degrade_has_no_share() -> None:
    share = single_flip_share(np.array([[0.5, 0.9999]]), Process(0.1, 64, 32))
    assert share.shape == (1, 2)
    assert math.isnan(share[0, 1]) and not math.isnan(share[0, 0])
    law = flip_law(0.9999, Process(0.1, 64, 32))
    assert (law.kept_F[0], law.lost_F.sum(), law.degraded) == (1.0, 0.0, 0.0)
    assert math.isnan(law.single_share)
    assert flip_rate_by_visit(0.9999, Process(0.1, 64, 32), 3).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True])
def test_bad_counts_are_named(bad: object) -> None:
    process = Process(0.1, 8, 8)
    with pytest.raises(UserError, match="theory: max_flips = "):
        flip_law(0.5, process, max_flips=bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="theory: n_visits = "):
        flip_rate_by_visit(0.5, process, bad)  # pyright: ignore[reportArgumentType]
