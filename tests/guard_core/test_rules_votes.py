import math

import numpy as np
import pytest
from rule_sights import by_hand, labels

from guard_core.rules import make_rule
from guard_core.rules.confidence import Cut, choose_cut, cut_by, subgroup_sizes

ANSWERS = [[0, 0, 1, 2, -1, 0, 1, -1], [1, 1, 1, 1, 1, 0, -1, -1]]
"""Votes 3, 2, 1 of 8 and 2 unparseable; 1, 5, 0 of 8 and 2 unparseable. The first 5 are trained."""
LABEL = labels(0, 1)


def seen():
    return by_hand(ANSWERS, 5, 3)


@pytest.mark.parametrize(
    ("name", "settings", "answers", "label", "rewards"),
    [
        # Shares of the parseable votes: 3/6, 2/6, 1/6 and 1/6, 5/6, 0.
        ("srt_soft", {}, ANSWERS, [0, 1], [[1 / 2, 1 / 3, 1 / 6, 0], [1 / 6, 5 / 6, 0, 0]]),
        ("srt_soft", {}, [[-1, -1]], [-1], [[0] * 4]),
        # Votes 1, 2 against 3 unparseable; 2, 1 against 2: a tie goes to the answer.
        ("mm_upt", {}, [[0, 1, 1, -1, -1, -1]], [1], [[0, 0, 0, 1]]),
        ("mm_upt", {}, [[0, 0, 1, -1, -1, 2]], [0], [[1, 0, 0, 0]]),
        # Shares 3/8, 2/8, 1/8; where all eight differ the entropy is ln 8 and all get 0.
        ("empo", {}, ANSWERS[:1], [0], [[0.375, 0.25, 0.125, 0]]),
        ("empo", {}, [[0, 1, 2, -1]], [0], [[0] * 4]),
        ("empo", {"unparseable": "alone"}, ANSWERS[:1], [0], [[0.375, 0.25, 0.125, 0.125]]),
        ("empo", {"unparseable": "alone"}, [[0, 1, 2, -1]], [0], [[0.25] * 4]),
        # (high - low)^2 / (total (high + low)), less what it is without the response.
        ("snr", {}, [[0, 0, 1, 1, 2]], [0], [[-1 / 12, -1 / 12, 0, 0]]),
        ("snr", {}, [[0, 0, 0, 1, 2]], [0], [[1 / 5 - 1 / 12, 1 / 5 - 1 / 4, 1 / 5 - 1 / 4, 0]]),
        ("snr", {"unparseable": -2}, [[0, 0, 0, 1, -1]], [0], [[7 / 60, 1 / 5 - 3 / 4, 0, -2]]),
        ("snr", {}, [[0, 0, 1, 1, 2, 2]], [0], [[0] * 4]),
        ("snr", {}, [[0]], [0], [[1, 0, 0, 0]]),
        ("snr", {}, [[0, 0]], [0], [[0] * 4]),
    ],
)
def test_rewards_by_hand(name, settings, answers, label, rewards):
    shown = by_hand(answers, min(5, len(answers[0])), 3)
    found = make_rule(name, settings).pay(shown, labels(*label))
    wanted = np.take_along_axis(np.array(rewards), shown.trained, axis=-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-15)


@pytest.mark.parametrize(
    ("threshold", "weights"), [(0.0, [1, 1]), (0.5, [1, 1]), (0.51, [0, 1]), (0.9, [0, 0])]
)
def test_srt_asks_for_a_share_of_the_parseable_votes(threshold, weights):
    # 3 of the 6 parseable votes and 5 of 6: .5 and .833, not 3/8 and 5/8.
    rule = make_rule("srt", {"threshold": threshold})
    assert rule.weigh(seen(), LABEL).tolist() == weights
    assert rule.pay(seen(), LABEL)[0].tolist() == [1, 1, 0, 0, 0]


def test_srt_keeps_the_surest_problems():
    # Shares of the label 0: 1, .5, .75, .25; rounded down, .74 of four problems are two.
    four = by_hand([[0] * 4, [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 2, 3]], 4, 4)
    label = labels(0, 0, 0, 0)
    for keep, weights in ((1.0, [1, 1, 1, 1]), (0.75, [1, 1, 1, 0]), (0.74, [1, 0, 1, 0])):
        assert make_rule("srt", {"keep": keep}).weigh(four, label).tolist() == weights
    assert make_rule("srt", {"keep": 0.01}).weigh(four, label).tolist() == [1, 0, 0, 0]
    both = make_rule("srt", {"keep": 0.75, "threshold": 0.6})
    assert both.weigh(four, label).tolist() == [1, 0, 1, 0]
    equal = by_hand([[0, 1], [0, 1], [0, 1]], 2, 2)
    assert make_rule("srt", {"keep": 0.7}).weigh(equal, labels(0, 0, 0)).tolist() == [1, 1, 0]


def test_ttcs_trains_what_is_neither_settled_nor_hopeless():
    # Of 4 trained: 0, 1, 2, 3 and 4 hits, mean rewards 0, .25, .5, .75, 1.
    rows = [[0] * hits + [1] * (4 - hits) for hits in range(5)]
    five, label = by_hand(rows, 4, 2), labels(0, 0, 0, 0, 0)
    assert make_rule("ttcs").weigh(five, label).tolist() == [0, 1, 1, 1, 0]
    narrow = make_rule("ttcs", {"least": 0.5, "most": 0.5})
    assert narrow.weigh(five, label).tolist() == [0, 0, 1, 0, 0]
    # Only the trained responses count: 1 hit of 2, though 3 of 4 votes.
    votes = by_hand([[0, 1, 0, 0]], 2, 2)
    assert narrow.weigh(votes, labels(0)).tolist() == [1]
    assert make_rule("ttcs").weigh(by_hand([[0]], 1, 1), labels(0)).tolist() == [1]


def test_disctt_supervises_where_the_vote_agrees():
    # 7 of 8 agree: supervised; 6 of 8 explore: 1 + .5 * (1 - 6/8) = 1.125 and .5 * (1 - 1/8).
    two = by_hand([[0] * 7 + [1], [0] * 6 + [1, -1]], 8, 2)
    rule = make_rule("disctt")
    direct = rule.is_direct(two, labels(0, 0))
    assert direct is not None and direct.tolist() == [True, False]
    assert rule.pay(two, labels(0, 0)).tolist() == [[1] * 7 + [0], [1.125] * 6 + [0.4375, 0]]
    plain = make_rule("disctt", {"diversity": 0.0, "agreement": 0.75})
    assert plain.pay(two, labels(0, 0)).tolist() == [[1] * 7 + [0], [1] * 6 + [0, 0]]
    assert plain.is_direct(two, labels(0, -1)).tolist() == [True, False]


def test_ddrl_trains_the_label_and_the_rarest_answers():
    # 4 of 8 stay: 2 of the label by their draws, the unparseable one, and one of answer 2.
    answers = [[0, 1, 0, 2, 0, -1, 1, 2]]
    draws = [[0.9, 0.1, 0.2, 0.3, 0.1, 0.5, 0.6, 0.8]]
    shown = by_hand(answers, 8, 3, draws=draws)
    rule = make_rule("ddrl")
    assert rule.n_draws(8, 8) == 8 and rule.is_direct(shown, labels(0)).tolist() == [True]
    # Answers 1 and 2 have two votes each; of these four the last by its draw is rarest.
    assert rule.pay(shown, labels(0)).tolist() == [[0, 0, 1, 0, 1, -1, 0, -1]]
    # Answer 1 as the label is the positive one; the most frequent answer 0 goes.
    assert rule.pay(shown, labels(1)).tolist() == [[0, 1, 0, 0, 0, -1, 1, -1]]
    assert rule.pay(shown, labels(-1)).tolist() == [[0] * 8]


def test_ddrl_counts_all_votes_and_trains_the_first():
    # Of 4 trained 2 stay. Answer 1 is rarer among the trained, answer 2 among all votes.
    shown = by_hand([[0, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0]], 4, 3, draws=[[0.5, 0.1, 0.2, 0.3]])
    assert make_rule("ddrl").pay(shown, labels(0)).tolist() == [[1, 0, -1, 0]]
    # A label that everybody gave fills the other places as well.
    same = by_hand([[0, 0, 0, 0]], 4, 1, draws=[[0.5, 0.1, 0.2, 0.3]])
    assert make_rule("ddrl").pay(same, labels(0)).tolist() == [[1, 1, 0, 0]]
    assert make_rule("ddrl", {"keep": 1.0}).pay(shown, labels(0)).tolist() == [[1, -1, -1, -1]]


def test_controls_know_nothing():
    draws = [[0.1, 0.5, 0.49, 0.9, 0.0], [0.7, 0.2, 0.6, 0.3, 0.8]]
    shown = by_hand(ANSWERS, 5, 3, draws=draws)
    rule = make_rule("random")
    assert rule.n_draws(8, 5) == 5
    assert rule.pay(shown, LABEL).tolist() == [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]]
    assert make_rule("random", {"chance": 1.0}).pay(shown, LABEL).tolist() == [[1] * 5] * 2
    losses = {name: make_rule(name).loss for name in ("one_shot_em", "maj_at_n", "random")}
    assert losses == {"one_shot_em": "entropy", "maj_at_n": "none", "random": "rewards"}


TOOLED = [[0, 0, 0, 1, 1, -1]], {"tool": [[False] * 4 + [True, True]]}
"""3 votes for 0 without a confirmation; 2 for 1, of which one is confirmed."""
SHARED = [[0, 0, 0, 0, 0, 1, 1, 2]]
"""Shares 5/8, 2/8, 1/8."""


@pytest.mark.parametrize(
    ("name", "settings", "answers", "given", "scores"),
    [
        ("t3rl", {}, *TOOLED, [3, 6]),
        ("t3rl", {"verified_weight": 1.5}, *TOOLED, [3, 2.5]),
        ("t3rl", {"verified_weight": 0.0}, *TOOLED, [3, 1]),
        # Rewording 1/4, 2/4, 0: 2 * .625 * .25 / .875 and 2 * .25 * .5 / .75; then 0, 3/4, 0.
        ("self_harmony", {}, SHARED, {"second": [[0, 1, 1, -1]]}, [5 / 14, 1 / 3, 0]),
        ("self_harmony", {}, SHARED, {"second": [[1, 1, 1, -1]]}, [0, 0.375, 0]),
        ("self_harmony", {}, [[0, 0]], {"second": [[1, -1]]}, [0, 0, 0]),
        ("co_rewarding_1", {}, [[0, 0, 0, 1]], {"second": [[1, 2, 1, -1, 1]]}, [0, 3, 1]),
        ("co_rewarding_2", {}, [[0, 0, 0, 1]], {"second": [[1, 2, 1, -1, 1]]}, [0, 3, 1]),
    ],
)
def test_scores_by_hand(name, settings, answers, given, scores):
    seen = by_hand(answers, 2, 3 if name != "t3rl" else 2, **given)
    np.testing.assert_allclose(make_rule(name, settings).scores(seen), [scores], rtol=1e-15)


def test_coverrl_asks_about_the_majority_and_one_rival():
    # The majority sits at 0, 2, 3. Answers 1 and 2 have one vote each; the first is at 1.
    seen = by_hand([[0, 1, 0, 0, 2, -1]], 4, 3)
    # Of fewer than asked for the largest even number: 2 of 3 where 4 are asked for.
    wanted = {2: [0, 2, 1, 1], 3: [0, 2, 3, 1, 1, 1], 4: [0, 2, -1, -1, 1, 1, -1, -1]}
    for n, asked in wanted.items():
        rule = make_rule("coverrl", {"verifications": n})
        assert rule.questions(seen, labels(0)).tolist() == [asked]
    assert make_rule("coverrl").questions(seen, labels(0)).shape == (1, 16)


def test_coverrl_rivals():
    rule = make_rule("coverrl", {"verifications": 2})
    # 2 has fewer votes than 1; an unparseable response comes after every answer.
    rows = [[0, 0, 1, 1, 2, -1], [0, 0, -1, 0, -1, 0], [0] * 6, [0, 1, 1, 2, 2, 2]]
    seen = by_hand(rows, 4, 3)
    asked = rule.questions(seen, labels(0, 0, 0, 0)).tolist()
    # All agree, or the majority is a single response: nobody is asked.
    assert asked == [[0, 1, 4, 4], [0, 1, 2, 2], [-1] * 4, [-1] * 4]
    assert rule.questions(seen, labels(-1, -1, -1, -1)).tolist() == [[-1] * 4] * 4


def test_coverrl_drops_what_its_verifier_doubts():
    # Right and wrong of the majority: 2-1, 1-1, 0-1, none readable, 1-0; the rival's do not count.
    verdicts = [
        [1, 1, 0, 1, 1, 1],
        [1, 0, -1, 0, 0, 0],
        [0, -1, -1, 1, 1, 1],
        [-1, -1, -1, 1, 0, 0],
        [1, -1, -1, 0, 0, -1],
    ]
    seen = by_hand([[0, 1]] * 5, 2, 2, verdicts=verdicts)
    rule = make_rule("coverrl", {"verifications": 3})
    assert rule.weigh(seen, labels(0, 0, 0, 0, 0)).tolist() == [1, 0, 0, 1, 1]
    assert rule.trusts(seen.of("verdicts")).tolist() == [True, False, False, True, True]


def test_coverrl_pays_format_and_match_and_its_verifier():
    seen = by_hand([[0, 1, -1]], 3, 2, verdicts=[[1, 0, -1, 1, 0, -1]])
    rule = make_rule("coverrl", {"verifications": 3})
    assert rule.pay(seen, labels(0)).tolist() == [[2, 1, 0]]
    # The majority's should be called right, the rival's wrong; unreadable ones get nothing.
    assert rule.verifier_rewards(seen).tolist() == [[2, 1, 0, 1, 2, 0]]
    half = make_rule("coverrl", {"verifications": 3, "format_reward": 0.5})
    assert half.pay(seen, labels(0)).tolist() == [[1.5, 0.5, 0]]
    assert half.verifier_rewards(seen).tolist() == [[1.5, 0.5, 0, 0.5, 1.5, 0]]
    # A second solution is rewarded as responses are, by the label of its problem.
    answers, label = np.array([[0, 1, -1], [2, 2, 0]]), labels(0, 2)
    assert half.regeneration_rewards(answers, label).tolist() == [[1.5, 0.5, 0], [1.5, 1.5, 0.5]]


NAN = math.nan
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
        # Nor is .4 - .3 one of more than .1, though as doubles it is.
        ({"t_margin": 0.1}, [[0] * 4 + [1] * 3 + [2] * 3], [[1.0] * 10], 0, [0, 0, 0, -1]),
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
    found = make_rule("scrl", settings).pay(seen, labels(label))
    assert found.tolist() == np.take(rewards, seen.trained).tolist()


def test_dare_pays_shares_by_certainty_and_rare_certain_answers():
    # n / u = 8, 2, 1/3, 2, so p = .649, .162, .027, .162; answer 2 lies below .05 and leaves
    # 13 votes. Then 8, 2 and 2 of 12, and bonuses 5/13 * 0, 9/13 * -1 and 12/13 * .5.
    seen = by_hand(VOTES, 16, 4, entropy=ENTROPY)
    rewards = make_rule("dare").pay(seen, labels(0))
    want = [2 / 3, 1 / 6 - 0.9 / 13, 0, 1 / 6 + 0.6 / 13, 0]
    np.testing.assert_allclose(rewards, np.take(want, seen.trained), atol=1e-7)
    # Without pruning answer 2 has 1/3 of the 37/3.
    rewards = make_rule("dare", {"threshold": 0.0, "alpha": 0.0}).pay(seen, labels(0))
    np.testing.assert_allclose(rewards[0, 12], 1 / 37, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        ({}, [0.55, -0.05, -0.2125, 0.1, -1]),
        ({"positive_from": "t_pos"}, [0.175, -0.05, -0.2125, 0.1, -1]),
        ({"entropy_weight": 1.0}, [1.0, -0.5, -1.5625, 1.0, -1]),
    ],
)
def test_scrl_continuous(settings, rewards):
    # H_a - H = -.5, .5, 1.5, -1: .5 + .05, -.05, -(.125 - .0625) - .15, +.1.
    seen = by_hand(VOTES, 16, 4, entropy=ENTROPY)
    found = make_rule("scrl_continuous", settings).pay(seen, labels(0))
    np.testing.assert_allclose(found, np.take([rewards], seen.trained), rtol=1e-12)


def similarities(size: int, **pairs: float) -> list[list[list[float]]]:
    """(1, K, K); `s01=.8` is the similarity of the responses 0 and 1."""
    matrix = np.eye(size)
    for name, value in pairs.items():
        i, j = int(name[1]), int(name[2])
        matrix[i, j] = matrix[j, i] = value
    return [matrix.tolist()]


ALIKE = {"s01": 0.8, "s02": 0.4, "s12": 0.6, "s34": 0.5, "s03": 0.9, "s13": 0.2, "s23": 0.1}


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        # Majority 0, 1, 2: u = 1 - (.6 + .9) / 2, 1 - (.7 + .8) / 2, 1 - (.5 + .6) / 2
        #   = .25, .25, .45, scaled 0, 0, 1.
        # Rest 3, 4: u = 1 - (.5 + .9) / 2, 1 - (.5 + .5) / 2 = .3, .5, scaled 0, 1.
        ([0, 0, 0, 1, 2, 0], [0.5, 0.5, 1, -1, -0.5]),
        # Unparseable responses are in no comparison. Without 3 the majority has
        #   u = 1 - (.6 + .8) / 2, 1 - (.7 + .8) / 2, 1 - (.5 + .6) / 2 = .3, .25, .45,
        # scaled .25, 0, 1. Response 4 is alone on its side.
        ([0, 0, 0, -1, 2], [0.625, 0.5, 1, -1, -0.5]),
    ],
)
def test_evol_rl(answers, rewards):
    seen = by_hand([answers], 5, 3, similarity=similarities(5, **ALIKE))
    found = make_rule("evol_rl").pay(seen, labels(0))
    np.testing.assert_allclose(found, [rewards], atol=1e-12)


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


def test_rent_pays_against_entropy():
    seen = by_hand([[0, 1, -1, 0]], 4, 2, entropy=[[1.0, 3.0, 0.0, NAN]])
    # The missing one is the mean of 1, 3 and 0.
    rewards = make_rule("rent").pay(seen, labels(0))
    np.testing.assert_allclose(rewards, [[-1, -3, -7, -4 / 3]], rtol=1e-15)
    rewards = make_rule("rent", {"unparseable": -2.0}).pay(seen, labels(0))
    assert rewards[0, 2] == -2
    # No whole numbers where draws are.
    whole = by_hand([[0, 1]], 2, 2, entropy=[[0.25, 0.5]], draws=np.zeros((1, 0), int))
    assert make_rule("rent").pay(whole, labels(0)).tolist() == [[-0.25, -0.5]]


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
    assert [subgroup_sizes(V) for V in (48, 1)] == [[1, 2, 4, 8, 16], [1]]
    assert make_rule("scope").n_draws(4, 4) == 4 * (4 + 2 + 1)
    assert make_rule("scope").n_draws(64, 32) == 64 * 127


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


def test_one_size_for_the_batch():
    """Alone, the second problem is cut at size 4."""
    one, two = shown([0, 1, 1, 0], ONE), shown([0, 1, 1, 1], TWO)
    names = ("answers", "draws", "step_logprob")
    both = {name: np.concatenate([getattr(one, name), getattr(two, name)]) for name in names}
    batch = by_hand(both.pop("answers"), 4, 2, **both)
    # R (.75 + .5) / 2, (.5 + .25) / 2, (.5 + .75) / 2; D 2, 1.5, 1: size 1.
    rule = make_rule("scope", {"balance": 0.7})
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
