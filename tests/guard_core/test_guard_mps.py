"""docs/method.md, section 5: when protection is on, its strength, and its candidates."""

from dataclasses import replace

import numpy as np
import pytest
from guard_plays import Play, as_votes

from guard_core import GuardConfig

SLOW = GuardConfig(W=10, T_steady=3)
"""Four flips in a row make a flip rate of .4 that falls by .1 a visit, .3 being calm."""

FLIPPING = [[40, 20], [20, 40]] * 2 + [[40, 20]]


def betas(config: GuardConfig, history: list[list[int]]) -> list[float]:
    play = Play(config, 1)
    return [round(float(play.see(as_votes([counts])).beta[0]), 12) for counts in history]


def test_off_after_t_steady_calm_visits_and_on_again():
    calm = [[40, 20]] * 12
    got = betas(SLOW, FLIPPING + calm + FLIPPING[1:])
    # Visits 6-11: FR = .4; 12: .3 and 13: .2 are calm but protected; 14: .1 is the third.
    first = [0, 0, 0, 0, 0.12] + [0.12] * 6 + [0.09, 0.06, 0, 0, 0, 0]
    assert got == [*first, 0, 0, 0, 0.12]


def test_one_contested_visit_restarts_the_count():
    flips = {2, 3, 8, 9, 13, 14}
    history = [[40, 20] if sum(f <= v for f in flips) % 2 == 0 else [20, 40] for v in range(1, 21)]
    got = betas(SLOW, history)
    # Calm at 12 and 13, contested again at 14, calm at 18, 19 and, the third in a row, 20.
    assert got[8:] == [0.12, 0.12, 0.12, 0.09, 0.09, 0.12, 0.12, 0.12, 0.12, 0.09, 0.06, 0]
    assert set(got[:8]) == {0}


@pytest.mark.parametrize("T_steady", [1, 2, 4])
def test_t_steady_is_the_number_of_calm_visits(T_steady: int):
    config = replace(SLOW, T_steady=T_steady, beta_max=1.0)
    got = betas(config, FLIPPING + [[40, 20]] * 12)
    calm = [0.3, 0.2, 0.1, 0.0, 0.0, 0.0]
    kept = calm[: T_steady - 1] + [0.0] * (6 - (T_steady - 1))
    assert got[11:] == kept


def test_saturating_schedule_reaches_its_maximum_at_the_threshold():
    config = replace(SLOW, beta_schedule="saturating")
    got = betas(config, FLIPPING + [[40, 20]] * 8)
    # .4, .3 and then .2 over a threshold of .3; the last calm visit is the third: off.
    assert got[4:] == [0.3] * 7 + [0.3, 0.2]


def test_release_gives_full_beta_on_every_flip_and_none_between():
    got = betas(GuardConfig.release(), [[40, 20], [20, 40], [20, 40], [40, 20]])
    assert got == [0, 0.3, 0, 0.3]


def test_candidates_hold_a_quarter_of_the_samples():
    votes = as_votes([[20, 16, 15, 13, 0]], samples=[[8, 9, 7, 8, 0]], n_votes=64, n_samples=32)
    assert Play(GuardConfig.paper(), 1).see(votes).minority.tolist() == [
        [False, True, False, True, False]
    ]


def test_release_asks_the_same_number_of_all_votes():
    votes = as_votes([[20, 9, 8, 7]], samples=[[20, 0, 0, 0]], n_votes=64, n_samples=32)
    release = Play(GuardConfig.release(), 1).see(votes)
    assert release.minority.tolist() == [[False, True, True, False]]
    assert not Play(GuardConfig.paper(), 1).see(votes).minority.any()


@pytest.mark.parametrize("n_samples", [1, 2, 3, 4, 7])
def test_a_candidate_needs_at_least_one_response(n_samples: int):
    votes = as_votes([[9, 1, 0]], n_votes=16, samples=[[n_samples - 1, 1, 0]], n_samples=n_samples)
    assert Play(GuardConfig.paper(), 1).see(votes).minority.tolist() == [[False, True, False]]


def test_empty_minority_keeps_beta_or_sets_it_to_zero():
    history = [[64, 0], [0, 64], [64, 0]]
    np.testing.assert_allclose(betas(GuardConfig.paper(), history)[-1], 0.12)
    assert betas(GuardConfig(empty_minority="plain"), history)[-1] == 0
    split = [[40, 20], [20, 40], [40, 20]]
    np.testing.assert_allclose(betas(GuardConfig(empty_minority="plain"), split)[-1], 0.12)
