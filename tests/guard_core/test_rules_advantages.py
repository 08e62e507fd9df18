"""From scores to labels and from rewards to streams."""

from dataclasses import replace

import numpy as np
import pytest
from guard_histories import checked, configs
from guard_plays import as_votes, chance
from hypothesis import given
from hypothesis import strategies as st
from rule_sights import Sight, by_hand, labels, sights

from guard_core import Draws, Guard, GuardConfig, group_advantages, policy_streams
from guard_core.rules import RULES, Rule, make_rule, response_streams, weighed

OFF = GuardConfig.off()
LABELLED = [make_rule(name) for name in RULES if RULES[name].pays_label()]


class Certain(Rule):
    """Pays what is observed as certainty, so that tests choose the rewards."""

    name, title = "certain", "Certain"
    has_label = False

    def pay(self, seen, label):
        return seen.of("certainty")[..., : seen.votes.n_samples]


class ByResponse(Rule):
    """TTRL whose rewards are given per response."""

    name, title = "by_response", "By response"

    def pay(self, seen, label):
        return Rule.pay(self, seen, label)


def decided(shown, config, rule, seed=0):
    """The second visit's decision after a first one with other labels, so that labels flip."""
    seen = shown.seen() if isinstance(shown, Sight) else shown
    rng, guard = np.random.default_rng(seed), Guard(config)
    shape = seen.votes.counts.shape[:-1]
    state = guard.init(shape[-1], leading=shape[:-1])
    backwards = replace(
        seen.votes, counts=seen.votes.counts[..., ::-1], samples=seen.votes.samples[..., ::-1]
    )
    for votes, scores in ((backwards, None), (seen.votes, rule.scores(seen))):
        draws = Draws(*rng.random((3, *shape)))
        state, decision = guard.step(state, votes, draws, scores)
    return decision


@checked(30)
@given(shown=sights(), config=configs(), seed=st.integers(0, 999))
def test_plain_ttrl_is_equal_to_the_bit(shown: Sight, config: GuardConfig, seed: int):
    rule, seen = make_rule("ttrl"), shown.seen()
    decision = decided(shown, config, rule, seed)
    streams = response_streams(rule, seen, decision, config)
    want = group_advantages(shown.answers[..., : shown.n_samples], decision, config)
    for got, stream in zip(streams, want, strict=True):
        assert got.tobytes() == stream.tobytes() and got.dtype == stream.dtype


@checked(25)
@given(shown=sights(), config=configs(), seed=st.integers(0, 999))
def test_closed_form_and_standardised_rewards_agree(shown, config, seed):
    """Of a problem's group, of the batch, of nothing; with every way to weight, skip and mix."""
    seen = shown.seen()
    for rule in LABELLED:
        decision = decided(shown, config, rule, seed)
        closed = response_streams(rule, seen, decision, config)
        general = response_streams(ByResponse(), seen, decision, config)
        for one, two in zip(closed, general, strict=True):
            # The floor of 1e-6 under a tiny std amplifies nothing: rewards are 0 or one weight.
            np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-12)


def paying(rewards: list[list[float]], config: GuardConfig = OFF, **changes) -> np.ndarray:
    """Majority stream of responses with these rewards."""
    answers = [[0] * len(rewards[0])] * len(rewards)
    seen = by_hand(answers, len(rewards[0]), 1, certainty=rewards)
    decision = replace(decided(seen, config, Certain()), **changes)
    return response_streams(Certain(), seen, decision, config)[0]


def test_rewards_are_standardised_over_the_batch():
    # Centred within the groups: -1, 1 and -3, 3. All rewards 0, 2, 1, 7 have the mean 2.5 and
    # squares 6.25 + .25 + 2.25 + 20.25 = 29 over 3.
    config = OFF.set(advantage_scale="batch")
    rewards = [[0.0, 2.0], [1.0, 7.0]]
    want = np.array([[-1, 1], [-3, 3]]) / (np.sqrt(29 / 3) + 1e-6)
    np.testing.assert_allclose(paying(rewards, config), want, rtol=1e-14)
    # A dropped problem leaves the deviation: 0, 2 have squares 2 over 1.
    skip = np.array([False, True])
    want = np.array([[-1, 1], [0, 0]]) / (np.sqrt(2) + 1e-6)
    np.testing.assert_allclose(paying(rewards, config, skip=skip), want, rtol=1e-14)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_nothing(scale):
    """A tenth is no binary number, and neither is the mean of many of them."""
    config = OFF.set(advantage_scale=scale)
    for K in range(1, 12):
        assert (paying([[0.1] * K, [-1 / 3] * K], config) == 0).all()
    seen = by_hand([[0, 0, 0, 1, 2, 2, 2]], 3, 3)
    soft = response_streams(make_rule("srt_soft"), seen, decided(seen, config, Certain()), config)
    assert soft[0].tolist() == [[0, 0, 0]]


def test_weights_stand_where_the_guard_puts_them():
    rewards = [[0.0, 4.0]]
    weight = np.array([0.5])
    plain = OFF.set(advantage_scale="none")
    assert paying(rewards, plain, weight=weight).tolist() == [[-2, 2]]
    for where in ("advantage", "reward"):
        config = plain.set(weight_on=where)
        assert paying(rewards, config, weight=weight).tolist() == [[-1, 1]]
    assert paying(rewards, plain, skip=np.array([True])).tolist() == [[0, 0]]


def test_the_bonus_lands_on_the_candidates():
    # Rewards 0, 4 in three of four responses: centred -3, 1, 1, 1, mean size 1.5, beta .2.
    # The two candidates' 1 and 3 votes share .3 as .075 and .225; unparseable ones get 5 % of half.
    config = OFF.set(mps=True, mix="bonus", advantage_scale="none")
    seen = by_hand([[1, 2, -1, 0]], 4, 3, certainty=[[0.0, 4.0, 4.0, 4.0]])
    decision = replace(
        decided(seen, config, Certain()),
        beta=np.array([0.2]),
        minority=np.array([[False, True, True]]),
        candidate_votes=np.array([[9, 1, 3]]),
    )
    majority, minority = response_streams(Certain(), seen, decision, config)
    want = [[-3 + 0.075, 1 + 0.225, 1 + 0.3 * 0.05 / 2, 1]]
    np.testing.assert_allclose(majority, want, rtol=1e-12)
    assert minority.tolist() == [[0, 0, 0, 0]]


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


def test_the_guard_remembers_more_answers_than_the_batch_has():
    config = GuardConfig().set(label_from="memory", flip_rate="instant")
    guard = Guard(config)
    state = guard.init(1, n_answers=6)
    seen = by_hand([[0, 0, 1, 1]], 4, 2, certainty=[[1.0, 2.0, 3.0, 4.0]])
    _, decision = guard.step(state, seen.votes, chance(1))
    for rule in (make_rule("ttrl"), make_rule("format"), Certain()):
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


OFF = GuardConfig.off()
MEMORY = OFF.set(label_from="memory")


def play(config, *visits, prime=None):
    """Visits of the same problems, each with votes and scores."""
    guard, decisions = Guard(config), []
    state = guard.init(visits[0][0].counts.shape[0])
    if prime:
        votes, scores = prime
        state = guard.prime(state, votes, chance(votes.counts.shape[:-1]), np.array(scores))
    for votes, scores in visits:
        draws = chance(votes.counts.shape[:-1])
        state, decision = guard.step(state, votes, draws, np.array(scores))
        decisions.append(decision)
    return state, decisions


def test_the_label_has_most_scores_and_its_share_of_the_votes():
    _, (decision,) = play(OFF, (as_votes([[5, 3, 0]], 10), [[0.1, 0.2, 0.0]]))
    assert decision.label.tolist() == [1]
    assert decision.match_rate.tolist() == [0.3]
    # An answer that nobody gave can have scores, as from a second vote set: its share is 0.
    _, (decision,) = play(OFF, (as_votes([[5, 3, 0]], 10), [[1.0, 2.0, 9.0]]))
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([2], [0])


def test_the_label_stays_where_no_score_is_positive():
    first = (as_votes([[1, 4]], 8), [[0.0, 1.0]])
    silent = (as_votes([[6, 1]], 8), [[0.0, 0.0]])
    _, (_, decision) = play(OFF, first, silent)
    assert (decision.label.tolist(), decision.flipped.tolist()) == ([1], [False])
    assert (decision.match_rate.tolist(), decision.tied.tolist()) == ([1 / 8], [False])
    _, (decision,) = play(OFF, silent)
    assert decision.label.tolist() == [-1]
    assert decision.match_rate.tolist() == [0]


def test_a_memory_sums_scores_and_not_votes():
    one = (as_votes([[5, 3]], 8), [[0.5, 2.0]])
    two = (as_votes([[7, 1]], 8), [[1.0, 0.0]])
    state, (first, second) = play(MEMORY, one, two)
    assert state.memory.tolist() == [[1.5, 2.0]]
    assert (first.label.tolist(), second.label.tolist()) == ([1], [1])
    assert second.match_rate.tolist() == [1 / 8]
    # A quarter of the first visit's 2.0 is less than the 1 + .125 of the other answer.
    state, (_, second) = play(MEMORY.set(discount=0.25), one, two)
    assert state.memory.tolist() == [[1.125, 0.5]]
    assert (second.label.tolist(), second.flipped.tolist()) == ([0], [True])


def test_scores_before_training_set_label_and_memory():
    prime = (as_votes([[5, 3]], 8), [[0.0, 3.0]])
    visit = (as_votes([[8, 0]], 8), [[2.0, 0.0]])
    state, (decision,) = play(MEMORY, visit, prime=prime)
    assert (state.memory.tolist(), decision.label.tolist()) == ([[2, 3]], [1])
    assert decision.visits.tolist() == [1]
    frozen = OFF.set(label_from="frozen")
    _, (decision,) = play(frozen, visit, prime=prime)
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([1], [0])
