"""SCOPE's subgroups, their labels and the choice of their size, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from rule_sights import by_hand, labels, sight

from guard_core.rules import make_rule
from guard_core.rules.confidence import Cut, choose_cut, cut_by, subgroup_sizes

ANY = labels(0)
CONFIDENCE = [0.9, 0.5, 0.3, 0.2]


def drawing(*subsets: tuple[int, ...]) -> list[list[float]]:
    """(1, D) draws of 4 responses, by which each subgroup draws its subset in that order."""
    numbers = []
    for subset in subsets:
        last = [place for place in range(4) if place not in subset]
        order = [*subset, *last]
        numbers += [order.index(place) / 4 for place in range(4)]
    return [numbers]


def shown(answers, subsets, confidence=CONFIDENCE, **given):
    logprob = [[math.log(value) for value in confidence]]
    return by_hand([answers], 4, 2, draws=drawing(*subsets), step_logprob=logprob, **given)


ONE = ((0, 1), (1, 2), (2, 3), (1, 3), (0, 1), (1, 2), (1, 2))
"""Subsets of four subgroups of 1, two of 2 and one of 4."""
TWO = ((1, 2), (0, 1), (1, 2), (1, 2), (0, 1), (0, 2), (1, 2))


def test_sizes_and_draws():
    assert subgroup_sizes(64) == [1, 2, 4, 8, 16, 32, 64]
    assert subgroup_sizes(48) == [1, 2, 4, 8, 16]
    assert subgroup_sizes(1) == [1]
    assert make_rule("scope").n_draws(4, 4) == 4 * (4 + 2 + 1)
    assert make_rule("scope").n_draws(64, 32) == 64 * 127


def test_a_size_that_no_other_beats():
    # Size 1: labels 0 (.9 > .5), 1, 1 (.3 > .2), 1 (.5 > .2): responses 0, 1, 2 match, R .75, D 2.
    # Size 2: labels 0, 1: responses 0 and 2 match, R .5, D 2. Size 4: label 1, R .5, D 1.
    seen = shown([0, 1, 1, 0], ONE)
    assert make_rule("scope").pay(seen, ANY).tolist() == [[1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("balance", "rewards"), [(0.7, [0, 1, 1, 1]), (0.2, [0, 0, 1, 1]), (0.5, [0, 0, 1, 1])]
)
def test_reward_against_diversity(balance, rewards):
    # Size 1: labels 1, 0, 1, 1: R .5, D 2. Size 2: labels 0, 0: R .25, D 1, beaten by both others.
    # Size 4: label 1: R .75, D 1. Over the two that are left, size 1 is at (0, 1), size 4 at
    # (1, 0): l against 1 - l, and the smaller size where they are equal. Were the beaten size part
    # of the scale, size 1 would stand at (.5, 1) and win at l = .7 with .175 against .3.
    seen = shown([0, 1, 1, 1], TWO)
    assert make_rule("scope", {"balance": balance}).pay(seen, ANY).tolist() == [rewards]


def test_one_size_for_the_batch_and_each_leading_index():
    one, two = shown([0, 1, 1, 0], ONE), shown([0, 1, 1, 1], TWO)
    both = {
        name: np.stack([getattr(one, name), getattr(two, name)])
        for name in ("answers", "draws", "step_logprob")
    }
    rule = make_rule("scope", {"balance": 0.7})
    alone = by_hand(both["answers"], 4, 2, draws=both["draws"], step_logprob=both["step_logprob"])
    assert rule.pay(alone, labels(0)).tolist() == [[[1, 1, 1, 0]], [[0, 1, 1, 1]]]
    # As one batch: R (.75 + .5) / 2, (.5 + .25) / 2, (.5 + .75) / 2; D 2, 1.5, 1: size 1.
    joined = {name: array[:, 0] for name, array in both.items()}
    batch = by_hand(
        joined["answers"], 4, 2, draws=joined["draws"], step_logprob=joined["step_logprob"]
    )
    assert rule.pay(batch, labels(0, 0)).tolist() == [[1, 1, 1, 0], [0, 0, 1, 1]]


def test_the_best_cut_by_hand():
    cuts = [
        Cut(np.full((1, 1), place), np.asarray(R), np.asarray(D))
        for place, (R, D) in enumerate([(0.2, 4.0), (0.6, 3.0), (0.5, 2.5), (0.7, 1.0)])
    ]
    # The third is beaten by the second. R scaled 0, .8, 1; D scaled 1, 2/3, 0.
    # l = .7: .7, .7 * .04 + .3 / 9 = .061, .3. l = .01: .01, .01 * .04 + .99 / 9 = .11, .99.
    assert choose_cut(cuts, 0.7).tolist() == [[1]]
    assert choose_cut(cuts, 0.01).tolist() == [[0]]
    assert choose_cut(cuts, 1.0).tolist() == [[3]]
    assert choose_cut([cuts[0], cuts[0]._replace(rewards=np.ones((1, 1)))], 0.7).tolist() == [[0]]
    # Where diversity does not count, it still beats an equal mean reward.
    beaten = cuts[3]._replace(diversity=np.asarray(0.5), rewards=np.full((1, 1), 9))
    assert choose_cut([beaten, *cuts], 1.0).tolist() == [[3]]


def test_confidence_as_probability_or_as_released():
    # e^0 and e^-1 + e^-2; as released the parseable answers meet the first three of 3, 0, 1, 2.
    seen = by_hand([[-1, 0, 1, 1]], 4, 2, step_logprob=[[-3.0, 0.0, -1.0, -2.0]])
    sane = make_rule("scope").scores(seen)
    np.testing.assert_allclose(sane, [[1, math.exp(-1) + math.exp(-2)]], rtol=1e-15)
    assert make_rule("scope", {"confidence": "release"}).scores(seen).tolist() == [[3, 0 + 1]]


@pytest.mark.parametrize(
    ("order", "rewards"), [((0, 1, 2, 3), [0, 1, 0, 0]), ((1, 2, 3, 0), [0, 0, 1, 1])]
)
def test_as_released_unparseable_responses_shift_the_weights_of_a_subset(order, rewards):
    # In order the answers 0, 1, 1 meet 9, 1, 1: label 0. With the unparseable one last they meet
    # 1, 1, 1: label 1.
    logprob = [[-9.0, -1.0, -1.0, -1.0]]
    seen = by_hand([[-1, 0, 1, 1]], 4, 2, draws=drawing(*[order] * 7), step_logprob=logprob)
    rule = make_rule("scope", {"confidence": "release", "subset": 1.0})
    assert rule.pay(seen, ANY).tolist() == [rewards]


def test_subgroups_that_draw_no_answer_have_no_label():
    seen = by_hand([[-1, 0, -1, -1]], 4, 2, step_logprob=[[-1.0] * 4])
    # The last one drew an answer 1 of which it has no member.
    drawn = np.array([[-2, 0, -2, 1]])
    plain, released = (cut_by(seen, drawn, 1, count_none) for count_none in (False, True))
    assert (float(plain.diversity), float(released.diversity)) == (2, 3)
    assert plain.rewards.tolist() == released.rewards.tolist() == [[0, 1, 0, 0]]


def test_remembered_scores_count_for_the_subset():
    # The subset is half of the votes, and so are 5 of the 10 remembered for answer 1.
    seen = shown([0, 0, 0, 1], ONE, prior=[[0.0, 10.0]])
    assert make_rule("scope").pay(seen, ANY).tolist() == [[0, 0, 0, 1]]
    # Half of 2 is less than the 1.4 of the subset 0, 1 and more than the .8 of 1, 2. Subgroups of
    # two then have the labels 0 and 1, and both the largest R and the largest D.
    less = shown([0, 0, 0, 1], ONE, prior=[[0.0, 2.0]])
    assert make_rule("scope").pay(less, ANY).tolist() == [[1, 1, 0, 1]]
    wider = shown([0, 0, 0, 1], ONE, prior=[[0.0, 0.0, 10.0]])
    assert make_rule("scope").pay(wider, ANY).tolist() == [[0, 0, 0, 0]]
    shorter = shown([0, 0, 0, 1], ONE, prior=[[10.0]])
    assert make_rule("scope").pay(shorter, ANY).tolist() == [[1, 1, 1, 0]]


def test_confidences_that_are_not_finite_weigh_nothing():
    logprob = [[math.nan, -math.inf, math.inf, -50.0]]
    seen = by_hand([[0, 0, 0, 1]], 4, 2, draws=drawing(*ONE), step_logprob=logprob)
    for name in ("logprob", "release"):
        scores = make_rule("scope", {"confidence": name}).scores(seen)
        assert (scores[0, 0], scores[0, 1] > 0) == (0, True)
    silent = by_hand([[0, 1, 0, 1]], 4, 2, draws=drawing(*ONE), step_logprob=[[math.nan] * 4])
    assert make_rule("scope").pay(silent, ANY).tolist() == [[0, 0, 0, 0]]


def test_only_the_trained_responses_are_paid():
    shown_all = sight(np.random.default_rng(3), n_samples=8)
    shown_some = replace(shown_all, n_samples=3, similarity=None)
    rule, label = make_rule("scope"), labels(0, 0, 0, 0)
    whole, part = (rule.pay(s.seen(), label) for s in (shown_all, shown_some))
    assert part.tolist() == whole[:, :3].tolist()
