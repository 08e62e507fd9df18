"""The guard where a rule scores the answers: labels and memory by scores, rates by votes."""

from dataclasses import fields, replace

import numpy as np
from guard_histories import Batch, History, arrays, checked, configs, vote_histories
from guard_plays import as_votes, chance
from hypothesis import given

from guard_core import Draws, Guard, GuardConfig, Votes

OFF = GuardConfig.off()
MEMORY = replace(OFF, label_from="memory")


def play(config, *visits, prime=None):
    """Visits of the same problems, each with votes and scores."""
    guard, decisions = Guard(config), []
    state = guard.init(visits[0][0].counts.shape[0], np.zeros(0))
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
    state, (_, second) = play(replace(MEMORY, discount=0.25), one, two)
    assert state.memory.tolist() == [[1.125, 0.5]]
    assert (second.label.tolist(), second.flipped.tolist()) == ([0], [True])


def test_a_memory_without_any_positive_score():
    silent = (as_votes([[6, 1]], 8), [[0.0, 0.0]])
    state, (decision,) = play(MEMORY, silent)
    assert (decision.label.tolist(), decision.tied.tolist()) == ([-1], [False])
    assert state.memory.tolist() == [[0, 0]]
    # What was remembered stays the label.
    _, (_, decision) = play(MEMORY, (as_votes([[1, 4]], 8), [[0.0, 1.0]]), silent)
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([1], [1 / 8])


def test_scores_before_training_set_label_and_memory():
    prime = (as_votes([[5, 3]], 8), [[0.0, 3.0]])
    visit = (as_votes([[8, 0]], 8), [[2.0, 0.0]])
    state, (decision,) = play(MEMORY, visit, prime=prime)
    assert (state.memory.tolist(), decision.label.tolist()) == ([[2, 3]], [1])
    assert decision.visits.tolist() == [1]
    frozen = replace(OFF, label_from="frozen")
    _, (decision,) = play(frozen, visit, prime=prime)
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([1], [0])


def test_scores_and_memory_of_different_widths():
    narrow = (as_votes([[2, 1]], 4), [[1.0, 0.5]])
    wide = (as_votes([[0, 1, 0, 3]], 4), [[0.0, 0.0, 0.0, 4.0]])
    state, (_, _, last) = play(MEMORY, narrow, wide, narrow)
    assert state.memory.tolist() == [[2, 1, 0, 4]]
    assert (last.label.tolist(), last.match_rate.tolist()) == ([3], [0])


def votes_and_draws(batch: Batch, n_samples: int) -> tuple[Votes, Draws]:
    votes = Votes.from_answers(batch.answers, n_samples=n_samples, n_answers=batch.n_answers)
    return votes, Draws(batch.tie, batch.skip, batch.pick)


@checked(20)
@given(history=vote_histories(max_visits=6), config=configs())
def test_without_scores_nothing_changes(history: History, config: GuardConfig):
    """The votes as scores, the same numbers as floats, and no scores: equal to the bit."""
    guard, outcomes = Guard(config), []
    for scored in (lambda c: None, lambda c: c, lambda c: c.astype(np.float64)):
        state = guard.init(history.n_problems, np.zeros(0), leading=history.leading)
        made = []
        if history.prime:
            votes, draws = votes_and_draws(history.prime, history.n_samples)
            state = guard.prime(state, votes, draws, scored(votes.counts))
        for batch in history.batches:
            votes, draws = votes_and_draws(batch, history.n_samples)
            rows = state.take(batch.own_problems)
            rows, decision = guard.step(rows, votes, draws, scored(votes.counts))
            state = state.put(batch.own_problems, rows)
            made += [np.asarray(getattr(decision, f.name)) for f in fields(decision)]
        outcomes.append([*made, *arrays(state).values()])
    for other in outcomes[1:]:
        for one, two in zip(outcomes[0], other, strict=True):
            assert one.tobytes() == two.tobytes() and one.dtype == two.dtype
