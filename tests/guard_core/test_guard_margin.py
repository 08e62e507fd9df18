"""docs/method.md, section 16: weight by the label's margin, and skipping below a share."""

from dataclasses import replace

import numpy as np
import pytest
from guard_plays import Play, as_votes

from guard_core import GuardConfig, Route

OFF = GuardConfig.off()
SQUARE = replace(OFF, margin_power=2)
"""Weights are squared margins."""


@pytest.mark.parametrize(("power", "weight"), [(0, 1.0), (1, 0.25), (2, 0.0625), (3, 0.015625)])
def test_the_weight_is_a_power_of_the_margin(power: int, weight: float):
    # 32 and 16 of 64 parsed votes; 20 more were unparseable.
    counts = as_votes([[32, 16, 16, 0]], n_votes=84)
    decision = Play(replace(OFF, margin_power=power), 1).see(counts)
    assert decision.weight.tolist() == [weight]


def test_a_margin_of_remembered_votes():
    play = Play(replace(SQUARE, label_from="memory", discount=0.5), 1)
    play.prime(as_votes([[64, 0]]))
    # 32 + 8 against 56, of 96: the label changes, with a margin of 1/6.
    assert play.see(as_votes([[8, 56]])).weight[0] == pytest.approx(1 / 36)


def test_a_label_that_does_not_lead_has_no_weight():
    for config in (replace(SQUARE, label_from="frozen"), replace(SQUARE, hysteresis=0.5)):
        play = Play(config, 3)
        play.prime(as_votes([[40, 24]] * 3))
        decision = play.see(as_votes([[30, 34], [32, 32], [40, 24]]))
        assert decision.label.tolist() == [0, 0, 0]
        assert decision.weight.tolist() == [0, 0, 1 / 16]


def test_it_multiplies_the_weight_of_frs():
    history = [as_votes([[48, 16]]), as_votes([[16, 48]]), as_votes([[48, 16]])] * 4
    plain, both = Play(GuardConfig(), 1), Play(GuardConfig(margin_power=1), 1)
    weights = np.array([(plain.see(v).weight, both.see(v).weight) for v in history])
    assert (weights[:, 0] < 1).any()
    assert np.array_equal(weights[:, 1], 0.5 * weights[:, 0])


def test_problems_below_the_share_are_skipped_beside_those_of_rcsu():
    play = Play(replace(OFF, min_share=0.5), 4)
    decision = play.see(as_votes([[32, 32], [40, 24], [31, 30], [0, 0]], n_votes=70))
    # 31 of 61 parsed votes are more than one half; nobody voted on the last.
    assert decision.skip.tolist() == [False, False, False, True]
    decision = play.see(as_votes([[31, 30, 3], [40, 24, 0], [64, 0, 0], [9, 2, 1]]))
    assert decision.skip.tolist() == [True, False, False, False]
    assert decision.route.tolist() == [Route.SKIPPED, 0, 0, 0]
    assert not decision.high_risk.any()


def test_a_weak_problem_takes_no_place_under_the_cap():
    eager = GuardConfig(tau_FR=0.0, theta_MR=0.0, W=2, p_skip=1.0, skip_order="first")
    for config, skipped in ((eager, [1, 0, 0, 0]), (replace(eager, min_share=0.6), [1, 1, 0, 0])):
        play = Play(config, 4)
        for first in (40, 20, 40):
            play.see(as_votes([[first, 64 - first, 0]] * 4))
        decision = play.see(as_votes([[32, 30, 2], *[[60, 4, 0]] * 3]))
        assert decision.high_risk.all()
        assert decision.skip.tolist() == skipped
