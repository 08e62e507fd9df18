"""Rules that choose another label than the majority, or ask about it, by hand."""

import numpy as np
import pytest
from rule_sights import by_hand, labels

from guard_core.rules import make_rule

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
    two = make_rule("coverrl", {"verifications": 2})
    assert two.questions(seen, labels(0)).tolist() == [[0, 2, 1, 1]]
    # Of fewer than asked for the largest even number: 2 of 3.
    four = make_rule("coverrl", {"verifications": 4})
    assert four.questions(seen, labels(0)).tolist() == [[0, 2, -1, -1, 1, 1, -1, -1]]
    three = make_rule("coverrl", {"verifications": 3})
    assert three.questions(seen, labels(0)).tolist() == [[0, 2, 3, 1, 1, 1]]
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
