"""docs/method.md, section 4: the weight of the loss."""

import numpy as np
from guard_plays import Play, as_votes, every_history

from guard_core import GuardConfig

WEIGHTS = [0.35, 0.42, 0.49, 0.5, 0.56, 0.6, 0.7, 0.765, 0.8, 0.85, 0.9, 1]


def test_weights_are_these_twelve_and_all_of_them_occur():
    histories = every_history(8)
    play = Play(GuardConfig.paper(), histories.shape[1])
    seen = {
        round(float(weight), 12)
        for counts in histories
        for weight in np.unique(play.see(as_votes(counts)).weight)
    }
    assert sorted(seen) == WEIGHTS


def test_confident_problem_gets_85_on_five_visits_then_1_for_ever():
    play = Play(GuardConfig.paper(), 1)
    weights = [float(play.see(as_votes([[48, 16]])).weight[0]) for _ in range(60)]
    np.testing.assert_allclose(weights, [1] * 4 + [0.85] * 5 + [1] * 51, rtol=1e-15)


def test_c2_counts_only_the_visits_at_which_it_fired():
    """Low match rates interrupt the series of .85 and do not use it up."""
    play = Play(GuardConfig.paper(), 1)
    weights = []
    for got in [40] * 5 + [0] * 10 + [40] * 20:
        decision = play.see(as_votes([[got, 0]]))
        weights.append(round(float(decision.weight[0]), 12))
    assert [place for place, weight in enumerate(weights) if weight == 0.85] == [4, 19, 20, 21, 22]
    assert set(weights) == {0.85, 1}


def test_a_flip_ends_c2_for_good_once_contested():
    play = Play(GuardConfig.paper(), 1)
    # Two flips in three visits: FR = .4 exceeds the threshold once.
    for counts in [[64, 0], [0, 64], [64, 0]] + [[64, 0]] * 20:
        decision = play.see(as_votes([counts]))
    assert decision.had_competition.tolist() == [True]
    assert decision.weight.tolist() == [1.0]
    assert play.state.c2_fired.tolist() == [0]


def test_a_mean_match_rate_of_exactly_the_threshold_does_not_exceed_it():
    """192 of 320 votes are a mean of .6, in whatever order the rates come."""
    rates = [[1, 64, 32, 51, 44], [44, 51, 32, 64, 1], [1, 64, 32, 51, 45]]
    play = Play(GuardConfig.paper(), 3)
    for counts in np.array(rates).T:
        decision = play.see(as_votes(counts[:, None]))
    assert (np.asarray(decision.weight) < 1).tolist() == [False, False, True]


def test_w_min_is_a_floor():
    play = Play(GuardConfig(flip_rate="instant", l1=1.0, w_min=0.25), 1)
    play.see(as_votes([[64, 0]]))
    assert play.see(as_votes([[0, 64]])).weight.tolist() == [0.25]
