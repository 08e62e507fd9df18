"""Rules that need nothing but the votes, against numbers worked out by hand."""

import numpy as np
import pytest
from rule_sights import by_hand, labels, rewards_of

from guard_core.rules import make_rule

ANSWERS = [[0, 0, 1, 2, -1, 0, 1, -1], [1, 1, 1, 1, 1, 0, -1, -1]]
"""Votes 3, 2, 1 of 8 and 2 unparseable; 1, 5, 0 of 8 and 2 unparseable. The first 5 are trained."""
LABEL = labels(0, 1)


def seen():
    return by_hand(ANSWERS, 5, 3)


@pytest.mark.parametrize(
    ("name", "settings", "answers", "label", "rewards"),
    [
        ("ttrl", {}, ANSWERS, [0, 1], [[1, 0, 0, 0], [0, 1, 0, 0]]),
        ("ttrl", {}, ANSWERS, [-1, -1], [[0] * 4] * 2),
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
        ("format", {}, ANSWERS[:1], [0], [[1, 1, 1, 0]]),
        ("one_shot_em", {}, ANSWERS[:1], [0], [[0] * 4]),
    ],
)
def test_rewards_by_hand(name, settings, answers, label, rewards):
    shown = by_hand(answers, min(5, len(answers[0])), 3)
    found = make_rule(name, settings).pay(shown, labels(*label))
    np.testing.assert_allclose(found, rewards, rtol=1e-15)


def test_ttrl_scores_votes_and_keeps_every_problem():
    rule = make_rule("ttrl")
    assert rule.scores(seen()).tolist() == [[3, 2, 1], [1, 5, 0]]
    assert rule.weigh(seen(), LABEL).tolist() == [1, 1]
    assert rule.is_direct(seen(), LABEL) is None


@pytest.mark.parametrize(
    ("threshold", "weights"), [(0.0, [1, 1]), (0.5, [1, 1]), (0.51, [0, 1]), (0.9, [0, 0])]
)
def test_srt_asks_for_a_share_of_the_parseable_votes(threshold, weights):
    # 3 of the 6 parseable votes and 5 of 6: .5 and .833, not 3/8 and 5/8.
    rule = make_rule("srt", {"threshold": threshold})
    assert rule.weigh(seen(), LABEL).tolist() == weights
    assert rewards_of(rule, seen(), LABEL)[0].tolist() == [1, 1, 0, 0, 0]


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
    assert rule.pay(two, labels(0, 0)).tolist() == [[1, 0, 0], [1.125, 0.4375, 0]]
    plain = make_rule("disctt", {"diversity": 0.0, "agreement": 0.75})
    assert plain.pay(two, labels(0, 0)).tolist() == [[1, 0, 0], [1, 0, 0]]
    assert plain.is_direct(two, labels(0, -1)).tolist() == [True, False]


@pytest.mark.parametrize("silent", [0, 2])
@pytest.mark.parametrize("counts", [(4, 4, 1), (3, 3, 3), (5, 2, 2), (1, 0, 0), (2, 0, 0)])
def test_snr_is_the_difference_without_one_response(counts, silent):
    def ratio(votes: list[int], total: int) -> float:
        high, low = sorted(votes)[:-3:-1]
        return 0.0 if high == 0 else (high - low) ** 2 / (total * (high + low))

    answers = [a for a, n in enumerate(counts) for _ in range(n)] + silent * [-1]
    rewards = make_rule("snr", {"unparseable": -2.0}).pay(
        by_hand([answers], len(answers), 3), labels(0)
    )[0]
    assert rewards[-1] == -2
    for a in set(answers) - {-1}:
        left = [n - (a == other) for other, n in enumerate(counts)]
        want = ratio(list(counts), len(answers)) - ratio(left, len(answers) - 1)
        np.testing.assert_allclose(rewards[a], want, atol=1e-14)
        assert -1 <= rewards[a] <= 1


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
    assert make_rule("maj_at_n").weigh(shown, LABEL).tolist() == [0, 0]
    losses = {name: make_rule(name).loss for name in ("one_shot_em", "maj_at_n", "random")}
    assert losses == {"one_shot_em": "entropy", "maj_at_n": "none", "random": "rewards"}
