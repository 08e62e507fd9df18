from dataclasses import replace
from itertools import cycle, product
from typing import ClassVar

import numpy as np
import pytest
from guard_histories import checked, configs
from guard_plays import Play, as_votes, chance
from hypothesis import example, given
from hypothesis import strategies as st
from rule_sights import Sight, by_hand, labels, sight, sights

from guard_core import Draws, Guard, GuardConfig, policy_streams
from guard_core.config import ConfigError
from guard_core.rules import RULES, Rule, make_rule, response_streams, scored, weighed

OFF = GuardConfig.off()
LABELLED = [make_rule(name) for name in RULES if RULES[name].pays_label()]


class Imitated(Rule):
    """Supervised on the label."""

    name, title = "imitated", "Imitated"

    def is_direct(self, seen, label):
        return label >= 0


class Odd(Rule):
    """TTRL whose rewards are given per response, and of which one method's array is changed."""

    name, title = "odd", "Odd"
    changed: ClassVar = {}

    def scores(self, seen):
        return self.changed.get("scores", np.copy)(seen.votes.counts)

    def pay(self, seen, label):
        return self.changed.get("pay", np.copy)(Rule.pay(self, seen, label))

    def weigh(self, seen, label):
        return self.changed.get("weigh", np.copy)(Rule.weigh(self, seen, label))


def decided(shown, config, rule, seed=0):
    """The second visit's decision after a first one with other labels, so that labels flip."""
    seen = shown.seen() if isinstance(shown, Sight) else shown
    rng, guard = np.random.default_rng(seed), Guard(config)
    shape = seen.votes.counts.shape[:-1]
    state = guard.init(shape[-1], leading=shape[:-1])
    votes = seen.votes
    backwards = replace(votes, counts=votes.counts[..., ::-1], samples=votes.samples[..., ::-1])
    for votes, scores in ((backwards, None), (seen.votes, rule.scores(seen))):
        draws = Draws(*rng.random((3, *shape)))
        state, decision = guard.step(state, votes, draws, scores)
    return decision


@checked(25)
@given(shown=sights(), config=configs(), seed=st.integers(0, 999))
@example(shown=sight(np.random.default_rng(0)), config=GuardConfig.release(), seed=0)
def test_closed_form_and_standardised_rewards_agree(shown, config, seed):
    """Of a problem's group, of the batch, of nothing; with every way to weight, skip and mix."""
    seen, ways = shown.seen(), cycle(product(["batch", "group", "none"], ["drop", "mask"]))
    for rule, (scale, skip_by) in zip(LABELLED, ways, strict=False):
        own = config.set(advantage_scale=scale, skip_by=skip_by)
        decision = decided(shown, own, rule, seed)
        skip = np.random.default_rng(seed).random(decision.skip.shape) < 0.4
        decision = replace(decision, skip=skip)
        closed = response_streams(rule, seen, decision, own)
        general = response_streams(Odd(), seen, decision, own)
        for one, two in zip(closed, general, strict=True):
            # The floor of 1e-6 under a tiny std amplifies nothing: rewards are 0 or one weight.
            np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-12)


def test_supervised_problems_are_not_standardised():
    # 7 of 8 agree: 1 for them and 0 for the other. Its 6 of 8 neighbours are standardised.
    seen = by_hand([[0] * 7 + [1], [0] * 6 + [1, -1]], 8, 2)
    rule = make_rule("disctt")
    decision = decided(seen, OFF, rule)
    majority, _ = response_streams(rule, seen, decision, OFF)
    assert majority[0].tolist() == [1] * 7 + [0]
    # Rewards 1.125 six times, .4375 and 0: mean .8984375.
    rewards = np.array([1.125] * 6 + [0.4375, 0])
    want = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(majority[1], want, rtol=1e-12)
    skipped = replace(decision, skip=np.array([True, False]))
    assert response_streams(rule, seen, skipped, OFF)[0][0].tolist() == [0] * 8


def test_rewards_of_the_label_are_advantages_where_a_rule_says_so():
    seen = by_hand([[0, 0, 0, 1], [1, 1, 0, -1]], 4, 2)
    majority, _ = response_streams(Imitated(), seen, decided(seen, OFF, Imitated()), OFF)
    assert majority.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


def test_the_guard_remembers_more_answers_than_the_batch_has():
    config = GuardConfig().set(label_from="memory", flip_rate="instant")
    guard = Guard(config)
    state = guard.init(1, n_answers=6)
    seen = by_hand([[0, 0, 1, 1]], 4, 2, entropy=[[1.0, 2.0, 3.0, 4.0]])
    _, decision = guard.step(state, seen.votes, chance(1))
    for rule in (make_rule("ttrl"), make_rule("format"), make_rule("rent")):
        majority, minority = response_streams(rule, seen, decision, config)
        assert majority.shape == minority.shape == (1, 4)


def test_a_problem_that_a_rule_leaves_out_leaves_the_batch():
    seen = by_hand([[0, 0, 0, 0], [0, 0, 1, 1]], 4, 2)
    rule = make_rule("ttcs")
    decision = decided(seen, OFF, rule)
    made = response_streams(rule, seen, decision, OFF)
    streams = policy_streams(*made, replace(decision, weight=np.array([0.5, 0.5])), GuardConfig())
    both = weighed(rule, seen, labels(0, 0), streams)
    assert both.weight.tolist() == [0, 0.5]
    assert both.drop.tolist() == [True, False]
    skipped = weighed(rule, seen, labels(0, 0), streams._replace(drop=np.array([False, True])))
    assert skipped.drop.tolist() == [True, True]
    kept = weighed(make_rule("ttrl"), seen, labels(0, 0), streams)
    assert (kept.weight.tolist(), kept.drop.tolist()) == ([0.5, 0.5], [False, False])


MEMORY = OFF.set(label_from="memory")


def test_the_label_has_most_scores_and_its_share_of_the_votes():
    decision = Play(OFF, 1).see(as_votes([[5, 3, 0]], 10), [[0.1, 0.2, 0.0]])
    assert decision.label.tolist() == [1]
    assert decision.match_rate.tolist() == [0.3]
    # An answer that nobody gave can have scores, as from a second vote set: its share is 0.
    decision = Play(OFF, 1).see(as_votes([[5, 3, 0]], 10), [[1.0, 2.0, 9.0]])
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([2], [0])


def test_the_label_stays_where_no_score_is_positive():
    silent = as_votes([[6, 1]], 8), [[0.0, 0.0]]
    play = Play(OFF, 1)
    play.see(as_votes([[1, 4]], 8), [[0.0, 1.0]])
    decision = play.see(*silent)
    assert (decision.label.tolist(), decision.flipped.tolist()) == ([1], [False])
    assert (decision.match_rate.tolist(), decision.tied.tolist()) == ([1 / 8], [False])
    decision = Play(OFF, 1).see(*silent)
    assert decision.label.tolist() == [-1]
    assert decision.match_rate.tolist() == [0]


@pytest.mark.parametrize(
    ("discount", "memory", "label"),
    # A quarter of the first visit's 2.0 is less than the 1 + .125 of the other answer.
    [(1.0, [1.5, 2.0], 1), (0.25, [1.125, 0.5], 0)],
)
def test_a_memory_sums_scores_and_not_votes(discount, memory, label):
    play = Play(MEMORY.set(discount=discount), 1)
    assert play.see(as_votes([[5, 3]], 8), [[0.5, 2.0]]).label.tolist() == [1]
    decision = play.see(as_votes([[7, 1]], 8), [[1.0, 0.0]])
    assert play.state.memory.tolist() == [memory]
    assert (decision.label.tolist(), decision.flipped.tolist()) == ([label], [label == 0])
    assert decision.match_rate.tolist() == [[7 / 8, 1 / 8][label]]


def test_a_memory_is_asked_where_the_visit_adds_a_score():
    play = Play(MEMORY, 1)
    assert play.see(as_votes([[4, 1]], 8), [[2.0, 2.0]]).label.tolist() == [0]
    kept = play.see(as_votes([[6, 1]], 8), [[0.0, 0.0]], tie=0.9)
    assert (kept.label.tolist(), kept.tied.tolist()) == ([0], [False])
    # As from a second vote set, where none of the first can be read; of one more answer.
    moved = play.see(as_votes([[0, 0]], 8), [[0.0, 0.0, 3.0]])
    assert (moved.label.tolist(), moved.match_rate.tolist()) == ([2], [0])
    assert (play.state.memory.tolist(), moved.minority.shape) == ([[2, 2, 3]], (1, 3))


def test_scores_before_training_set_label_and_memory():
    play, frozen = Play(MEMORY, 1), Play(OFF.set(label_from="frozen"), 1)
    for own in (play, frozen):
        own.prime(as_votes([[5, 3]], 8), [[0.0, 3.0]])
    decision, kept = (own.see(as_votes([[8, 0]], 8), [[2.0, 0.0]]) for own in (play, frozen))
    assert (play.state.memory.tolist(), decision.label.tolist()) == ([[2, 3]], [1])
    assert decision.visits.tolist() == [1]
    assert (kept.label.tolist(), kept.match_rate.tolist()) == ([1], [0])


@pytest.mark.parametrize("method", ["scores", "pay", "weigh"])
@pytest.mark.parametrize("change", [lambda a: a * np.nan, lambda a: a[..., :1, None], np.negative])
def test_a_rules_arrays_of_no_use_are_refused_by_name(monkeypatch, method, change):
    """Rewards that are NaN, or of one response, trained nothing or something else in silence."""
    monkeypatch.setattr(Odd, "changed", {method: change})
    seen, rule = by_hand([[0, 0, 0, 1], [0, 0, 1, 1]], 4, 2), Odd()
    decision = decided(seen, OFF, make_rule("ttrl"))

    def made():
        scored(rule, seen)
        streams = policy_streams(*response_streams(rule, seen, decision, OFF), decision, OFF)
        return weighed(rule, seen, decision.label, streams)

    if (method, change) == ("pay", np.negative):
        assert np.isfinite(made().majority).all()
        return
    with pytest.raises(ConfigError, match=f"rule odd: {method} returned .* it must be finite"):
        made()
