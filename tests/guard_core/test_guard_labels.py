"""docs/method.md, sections 2 and 3: labels, visit 0, flips and rates."""

from dataclasses import replace

import numpy as np
import pytest
from guard_histories import checked
from guard_plays import Play, as_votes, chance, every_history
from hypothesis import given
from hypothesis import strategies as st

from guard_core import Guard, GuardConfig

PAPER = GuardConfig.paper()


def test_the_first_label_after_silent_visits_is_no_flip():
    play = Play(PAPER, 1)
    silent = [play.see(as_votes([[0, 0]])) for _ in range(3)]
    assert [int(decision.label[0]) for decision in silent] == [-1, -1, -1]
    decision = play.see(as_votes([[0, 9]]))
    assert (decision.label[0], decision.flipped[0], decision.visits[0]) == (1, False, 4)


@pytest.mark.parametrize("label_from", ["current", "frozen", "memory"])
def test_a_visit_without_a_vote_keeps_the_label(label_from: str):
    play = Play(GuardConfig(label_from=label_from, tie_break="first"), 1)
    play.see(as_votes([[0, 40]]))
    decision = play.see(as_votes([[0, 0]]))
    assert (decision.label[0], decision.flipped[0], decision.tied[0]) == (1, False, False)
    assert (decision.visits[0], decision.match_rate[0], decision.mean_match_rate[0]) == (
        2,
        0,
        40 / 64 / 2,
    )
    assert not decision.minority.any()


def test_a_batch_that_knows_no_answer_at_all():
    play = Play(PAPER, 2)
    decision = play.see(as_votes(np.zeros((2, 0))))
    assert decision.label.tolist() == [-1, -1]
    assert decision.visits.tolist() == [1, 1]
    assert decision.weight.tolist() == [1, 1]


def test_unparseable_responses_stay_in_the_denominator():
    decision = Play(PAPER, 1).see(as_votes([[3, 1]], n_votes=64))
    assert decision.match_rate.tolist() == [3 / 64]


@given(n_tied=st.integers(1, 7), place=st.integers(0, 6), share=st.sampled_from([0.01, 0.5, 0.99]))
@checked(20)
def test_a_tie_goes_to_the_answer_at_the_place_drawn(n_tied: int, place: int, share: float):
    place %= n_tied
    counts = np.zeros(15, dtype=int)
    counts[1::2][:n_tied] = 4
    decision = Play(PAPER, 1).see(as_votes([counts]), tie=(place + share) / n_tied)
    assert decision.label.tolist() == [1 + 2 * place]
    assert decision.tied.tolist() == [n_tied > 1]


@pytest.mark.parametrize("below_one", [1 - 2**-24, 1 - 2**-53], ids=["float32", "float64"])
@pytest.mark.parametrize("n_tied", range(1, 65))
def test_a_draw_just_below_one_stays_in_range_in_single_precision(n_tied, below_one):
    """Also a double that becomes 1 on its way to single precision."""
    draws = chance(1)
    draws = replace(draws, tie=np.full(1, below_one, dtype=np.float32))
    guard = Guard(PAPER)
    state = guard.init(1)
    _, decision = guard.step(state, as_votes([[1] * n_tied]), draws)
    assert decision.label.tolist() == [n_tied - 1]


TIES = [[0, 20, 20], [20, 20, 20], [20, 0, 20]]
CLOSE = [[30, 34], [22, 42], [34, 30], [0, 64], [1, 63]]


@pytest.mark.parametrize(
    ("settings", "first", "history", "wanted"),
    [
        ({"tie_break": "first"}, None, TIES, [1, 0, 0]),
        ({"tie_break": "incumbent"}, None, TIES, [1, 1, 0]),
        ({"tie_break": "incumbent"}, [0, 0, 9], [[20, 20, 0]], [0]),
        # Frozen is the majority before training, or the first one.
        ({"label_from": "frozen"}, [0, 0, 9], [[9, 0, 0], [0, 9, 0], [0, 0, 0]], [2, 2, 2]),
        ({"label_from": "frozen"}, [0, 0, 0], [[9, 0, 0], [0, 9, 0]], [0, 0]),
        ({"label_from": "frozen"}, None, [[0, 9, 0], [9, 0, 0]], [1, 1]),
        # Memory sums votes over visits and counts visit 0.
        ({"label_from": "memory"}, [9, 4], [[4, 6]] * 3, [0, 0, 1]),
        ({"label_from": "memory"}, None, [[4, 6]] * 3, [1, 1, 1]),
        # 40 halves to 20, 10, 5, against 10, 15, 17.5; on silent visits too.
        ({"label_from": "memory", "discount": 0.5}, [40, 0], [[0, 10]] * 3, [0, 1, 1]),
        ({"label_from": "memory", "discount": 0.9}, [40, 0], [[0, 10]] * 3, [0, 0, 0]),
        ({"label_from": "memory"}, [40, 0], [[0, 10]] * 3, [0, 0, 0]),
        ({"label_from": "memory", "discount": 0.5}, [40, 0], [[0, 0], [0, 0], [0, 11]], [0, 0, 1]),
        # Hysteresis keeps a label that is nearly as frequent.
        ({"hysteresis": 0.4}, [40, 24], CLOSE, [0, 1, 1, 1, 1]),
        ({"hysteresis": 1.0}, [40, 24], CLOSE, [0, 0, 0, 1, 1]),
        # Sums: 70 and 58, 92 and 100, 126 and 130, 126 and 194.
        ({"hysteresis": 0.1, "label_from": "memory"}, [40, 24], CLOSE, [0, 0, 0, 1, 1]),
        ({"label_from": "memory"}, [40, 24], CLOSE, [0, 1, 1, 1, 1]),
    ],
)
def test_labels_of_a_history(settings, first, history, wanted):
    play = Play(GuardConfig(**settings), 1)
    if first is not None:
        play.prime(as_votes([first]))
    assert [int(play.see(as_votes([counts])).label[0]) for counts in history] == wanted


@pytest.mark.parametrize("label_from", ["current", "frozen", "memory"])
def test_visit_0_is_neither_visit_nor_flip(label_from: str):
    play = Play(GuardConfig(label_from=label_from), 2)
    before = play.state
    play.prime(as_votes([[9, 3], [3, 9]]))
    assert play.state.label.tolist() == [0, 1]
    for name in ("visits", "flips", "match_rates", "had_competition", "c2_fired", "steady"):
        assert not np.asarray(getattr(play.state, name)).any(), name
        assert np.array_equal(getattr(play.state, name), getattr(before, name))
    decision = play.see(as_votes([[9, 3], [3, 9]]))
    assert decision.visits.tolist() == [1, 1]
    assert decision.flipped.tolist() == [False, False]


def test_a_label_that_leaves_visit_0_behind_is_a_flip():
    play = Play(PAPER, 1)
    play.prime(as_votes([[9, 3]]))
    assert play.see(as_votes([[3, 9]])).flipped.tolist() == [True]


def test_the_match_rate_of_a_frozen_label_is_its_share_of_this_visit():
    play = Play(GuardConfig(label_from="frozen"), 1)
    play.prime(as_votes([[0, 40]]))
    decision = play.see(as_votes([[48, 16]]))
    assert decision.match_rate.tolist() == [0.25]
    assert decision.minority.tolist() == [[True, False]]


def test_a_label_beyond_the_answers_of_the_batch():
    play = Play(GuardConfig(label_from="frozen"), 1)
    play.prime(as_votes([[0, 0, 0, 40]]))
    decision = play.see(as_votes([[48, 16]]))
    assert (decision.label[0], decision.match_rate[0]) == (3, 0)
    assert decision.minority.tolist() == [[True, True]]


def test_the_memory_grows_with_new_answers_and_keeps_the_old():
    play = Play(GuardConfig(label_from="memory"), 2)
    for counts in ([[5], [4]], [[1, 3, 0, 0], [0, 0, 0, 9]], [[2], [1]]):
        decision = play.see(as_votes(counts))
    assert play.state.memory.tolist() == [[8, 3, 0, 0], [5, 0, 0, 9]]
    assert decision.label.tolist() == [0, 3]


def test_rates_divide_by_the_window_and_by_the_visits_seen():
    play = Play(PAPER, 1)
    decisions = [play.see(as_votes([c])) for c in ([32, 0], [0, 64], [16, 0])]
    assert [float(d.flip_rate[0]) for d in decisions] == [0, 0.2, 0.4]
    assert [float(d.mean_match_rate[0]) for d in decisions] == [0.5, 0.75, 1.75 / 3]
    decisions = [play.see(as_votes([[64, 0]])) for _ in range(5)]
    assert [float(d.flip_rate[0]) for d in decisions] == [0.4, 0.4, 0.4, 0.2, 0]
    assert [bool(d.had_competition[0]) for d in decisions] == [True] * 5


def test_the_plateau_ends_at_four_tenths():
    histories = every_history(6)
    had = []
    for tau_FR in (0.19, 0.2, 0.399, 0.4):
        play = Play(GuardConfig(tau_FR=tau_FR), histories.shape[1])
        had.append(
            int(sum(play.see(as_votes(counts)).had_competition.sum() for counts in histories))
        )
    assert had[0] > had[1] == had[2] > had[3]
