"""Rules with confidences or similarities of responses, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from rule_sights import by_hand, labels

from guard_core.rules import make_rule

NAN, INF = math.nan, math.inf
VOTES = [[0] * 8 + [1] * 4 + [2, 3, -1, -1]]
"""Shares .5, .25, .0625 and .0625 of 16."""
ENTROPY = [[1.0] * 8 + [2.0] * 4 + [3.0, 0.5, 2.25, 2.25]]
"""Class means 1, 2, 3, .5; the mean of all 16 is (8 + 8 + 3 + .5 + 4.5) / 16 = 1.5."""


FLAT = [[1.0] * 8]
CLOSE = [[0, 0, 0, 1, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("settings", "answers", "entropy", "label", "rewards"),
    [
        # 0 leads with .5 >= .375 by .25 > .125. Below .125 are 2, whose entropy is 1.5 above the
        # mean, and 3, whose entropy is below it. Another label than the leader is not positive.
        ({}, VOTES, ENTROPY, 0, [1, 0, -1, 0, -1]),
        ({}, VOTES, ENTROPY, 1, [0, 0, -1, 0, -1]),
        ({}, VOTES, ENTROPY, -1, [0, 0, -1, 0, -1]),
        # .375 - .25 = .125 is no lead of more than .125; with 4 votes it is .5 - .25.
        ({}, CLOSE, FLAT, 0, [0, 0, 0, 0, 0, -1]),
        ({}, [[0, 0, 0, 0, 1, 1, 3, 4]], FLAT, 0, [1, 0, 0, 0, 0, -1]),
        # An answer without a rival has nobody to lead.
        ({"t_margin": 1.0}, [[0, 0, 0] + [-1] * 5], FLAT, 0, [1, -1]),
        ({"t_margin": 1.0}, [[0, 0, 0, 0, 1, 1, 3, 4]], FLAT, 0, [0, 0, 0, 0, 0, -1]),
        # Entropy 2 of answer 0 lies above the mean (6 + 5) / 8; the others' 1 below.
        ({"t_low": 0.5}, CLOSE, [[2.0] * 3 + [1.0] * 5], 0, [-1, 0, 0, 0, 0, -1]),
        # The mean of three tenths is a bit more than a tenth, and ">= H" holds.
        ({"t_low": 0.5}, [[0, 0, 1]], [[0.1] * 3], 0, [1, -1, -1]),
    ],
)
def test_scrl_binary(settings, answers, entropy, label, rewards):
    seen = by_hand(answers, len(answers[0]), max(answers[0]) + 1, entropy=entropy)
    assert make_rule("scrl", settings).pay(seen, labels(label)).tolist() == [rewards]


def test_dare_pays_shares_by_certainty_and_rare_certain_answers():
    # n / u = 8, 2, 1/3, 2, so p = .649, .162, .027, .162; answer 2 lies below .05 and leaves
    # 13 votes. Then 8, 2 and 2 of 12, and bonuses 5/13 * 0, 9/13 * -1 and 12/13 * .5.
    seen = by_hand(VOTES, 8, 4, entropy=ENTROPY)
    rewards = make_rule("dare").pay(seen, labels(0))
    want = [[2 / 3, 1 / 6 - 0.9 / 13, 0, 1 / 6 + 0.6 / 13, 0]]
    np.testing.assert_allclose(rewards, want, atol=1e-7)
    # Without pruning answer 2 has 1/3 of the 37/3.
    rewards = make_rule("dare", {"threshold": 0.0, "alpha": 0.0}).pay(seen, labels(0))
    np.testing.assert_allclose(rewards[0, 2], 1 / 37, atol=1e-7)
    silent = by_hand([[-1, -1]], 2, 1, entropy=[[0.5, NAN]])
    assert make_rule("dare").pay(silent, labels(-1)).tolist() == [[0, 0]]


def test_scrl_continuous():
    # H_a - H = -.5, .5, 1.5, -1: .5 + .05, -.05, -(.125 - .0625) - .15, +.1.
    seen = by_hand(VOTES, 8, 4, entropy=ENTROPY)
    rewards = make_rule("scrl_continuous").pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[0.55, -0.05, -0.2125, 0.1, -1]], rtol=1e-12)
    described = make_rule("scrl_continuous", {"positive_from": "t_pos"})
    rewards = described.pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[0.175, -0.05, -0.2125, 0.1, -1]], rtol=1e-12)
    heavy = make_rule("scrl_continuous", {"entropy_weight": 1.0})
    rewards = heavy.pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[1.0, -0.5, -1.5625, 1.0, -1]], rtol=1e-12)


def test_scrl_reads_a_missing_entropy_as_the_mean_of_the_others():
    known = by_hand([[0, 0, 0, 1]], 4, 2, entropy=[[1.0, 2.0, 3.0, 2.0]])
    missing = by_hand([[0, 0, 0, 1]], 4, 2, entropy=[[1.0, NAN, 3.0, INF]])
    rule = make_rule("scrl_continuous")
    assert rule.pay(missing, labels(0)).tolist() == rule.pay(known, labels(0)).tolist()


def similarities(size: int, **pairs: float) -> list[list[list[float]]]:
    """(1, K, K); `s01=.8` is the similarity of the responses 0 and 1."""
    matrix = np.eye(size)
    for name, value in pairs.items():
        i, j = int(name[1]), int(name[2])
        matrix[i, j] = matrix[j, i] = value
    return [matrix.tolist()]


ALIKE = {"s01": 0.8, "s02": 0.4, "s12": 0.6, "s34": 0.5, "s03": 0.9, "s13": 0.2, "s23": 0.1}


def test_evol_rl():
    # Majority 0, 1, 2: u = 1 - (.6 + .9) / 2, 1 - (.7 + .8) / 2, 1 - (.5 + .6) / 2
    #   = .25, .25, .45, scaled 0, 0, 1.
    # Rest 3, 4: u = 1 - (.5 + .9) / 2, 1 - (.5 + .5) / 2 = .3, .5, scaled 0, 1.
    seen = by_hand([[0, 0, 0, 1, 2, 0]], 5, 3, similarity=similarities(5, **ALIKE))
    rewards = make_rule("evol_rl").pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[0.5, 0.5, 1, -1, -0.5]], atol=1e-12)


def test_evol_rl_leaves_unparseable_responses_out_of_all_comparisons():
    # Without 3: u = 1 - (.6 + .8) / 2, 1 - (.7 + .8) / 2, 1 - (.5 + .6) / 2 = .3, .25, .45,
    # scaled .25, 0, 1. Response 4 is alone on its side.
    seen = by_hand([[0, 0, 0, -1, 2]], 5, 3, similarity=similarities(5, **ALIKE))
    rewards = make_rule("evol_rl").pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[0.625, 0.5, 1, -1, -0.5]], atol=1e-12)


def test_evol_rl_lone_and_equal_responses():
    rule = make_rule("evol_rl")
    lone = by_hand([[0, 1, 1, 2]], 4, 3, similarity=similarities(4))
    assert rule.pay(lone, labels(0)).tolist() == [[1, -0.75, -0.75, -0.75]]
    assert rule.pay(lone, labels(1)).tolist() == [[-0.75, 0.75, 0.75, -0.75]]
    # All see .1, .3 and .8, in another order each, whose sums differ by a bit.
    assert 0.1 + 0.3 + 0.8 != 0.1 + 0.8 + 0.3
    pairs = {"s01": 0.1, "s23": 0.1, "s02": 0.3, "s13": 0.3, "s03": 0.8, "s12": 0.8}
    alike = by_hand([[0] * 4], 4, 1, similarity=similarities(4, **pairs))
    assert rule.pay(alike, labels(0)).tolist() == [[0.75] * 4]
    single = by_hand([[0], [0], [-1]], 1, 2, similarity=[[[1.0]]] * 3)
    assert rule.pay(single, labels(0, 1, -1)).tolist() == [[1], [-0.5], [-1]]


def test_evol_rl_cuts_and_fills_similarities():
    rule = make_rule("evol_rl")
    odd = {"s01": -0.5, "s02": NAN, "s12": 1.5}
    even = {"s01": 0.0, "s02": 0.0, "s12": 1.0}
    one, two = (
        rule.pay(by_hand([[0, 0, 0]], 3, 1, similarity=similarities(3, **s)), labels(0))
        for s in (odd, even)
    )
    assert one.tolist() == two.tolist() == [[1, 0.5, 0.5]]


def test_intuitor_pays_certainty():
    seen = by_hand([[0, 1, -1, 0]], 3, 2, certainty=[[4.0, 2.0, 7.0, 100.0]])
    assert make_rule("intuitor").pay(seen, labels(0)).tolist() == [[4, 2, 7]]
    # What is missing is the mean of the trained others; 100 belongs to an untrained one.
    seen = by_hand([[0, 1, -1, 0]], 3, 2, certainty=[[4.0, NAN, -INF, 100.0]])
    assert make_rule("intuitor").pay(seen, labels(0)).tolist() == [[4, 4, 4]]
    seen = by_hand([[0]], 1, 1, certainty=[[NAN]])
    assert make_rule("intuitor").pay(seen, labels(0)).tolist() == [[0]]


def test_rent_pays_against_entropy():
    seen = by_hand([[0, 1, -1, 0]], 4, 2, entropy=[[1.0, 3.0, 0.0, NAN]])
    # The missing one is the mean of 1, 3 and 0.
    rewards = make_rule("rent").pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[-1, -3, -7, -4 / 3]], rtol=1e-15)
    rewards = make_rule("rent", {"unparseable": -2.0}).pay(seen, labels(0))
    assert rewards[0, 2] == -2


@pytest.mark.parametrize("name", ["intuitor", "rent"])
def test_what_has_no_label_reads_none(name):
    seen = by_hand([[0, 1]], 2, 2, certainty=[[1.0, 2.0]], entropy=[[1.0, 2.0]])
    rule = make_rule(name)
    assert rule.pay(seen, labels(0)).tolist() == rule.pay(seen, labels(-1)).tolist()
