"""Votes and draws check themselves; arrays of other libraries go in, NumPy's come out."""

from typing import Any

import numpy as np
import pytest
import torch
from guard_histories import History, arrays, checked, configs, vote_histories, walk
from hypothesis import given

from guard_core import Draws, Guard, GuardConfig, Votes

LIBRARIES = pytest.mark.parametrize("asarray", [np.asarray, torch.asarray])


def test_shapes_must_match_and_have_problems_and_answers():
    with pytest.raises(ValueError, match=r"\(1, 3\).*\(1, 2\)"):
        Votes(np.ones((1, 3), int), np.ones((1, 2), int), 8, 8)
    with pytest.raises(ValueError, match=r"\(\.\.\., P, A\)"):
        Votes(np.ones(3, int), np.ones(3, int), 8, 8)


@pytest.mark.parametrize(("n_votes", "n_samples"), [(8, 9), (8, 0), (0, 0), (8, -1)])
def test_sizes_must_be_possible(n_votes: int, n_samples: int):
    counts = np.zeros((1, 2), int)
    with pytest.raises(ValueError, match=f"n_samples = {n_samples}.*n_votes = {n_votes}"):
        Votes(counts, counts, n_votes, n_samples)


@LIBRARIES
@pytest.mark.parametrize("wrong", [7, -2])
def test_answer_ids_outside_of_their_range_are_refused(asarray: Any, wrong: int):
    good = [[0, 2, -1, 1]]
    assert Votes.from_answers(asarray(good), n_samples=2, n_answers=3).n_votes == 4
    with pytest.raises(ValueError, match=r"must lie in -1..2; raise n_answers = 3"):
        Votes.from_answers(asarray([[0, wrong, -1, 1]]), n_samples=2, n_answers=3)
    with pytest.raises(ValueError, match=r"must be integers, not .*float64"):
        Votes.from_answers(np.array(good, float), n_samples=2, n_answers=3)


@LIBRARIES
@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.5])
@pytest.mark.parametrize("name", ["tie", "skip", "pick"])
def test_draws_are_numbers_from_0_to_1(asarray: Any, wrong: float, name: str):
    good = asarray([0.0, 0.5, 1.0])  # single precision makes 1 of a double just below
    draws = dict.fromkeys(("tie", "skip", "pick"), good)
    Draws(**draws)
    with pytest.raises(ValueError, match=rf"draws: {name} must lie in \[0, 1\)"):
        Draws(**draws | {name: asarray([0.0, wrong, 0.5])})
    empty = asarray(np.zeros(0))
    Draws(empty, empty, empty)


@LIBRARIES
def test_a_problem_twice_in_a_batch_is_refused(asarray: Any):
    state = Guard(GuardConfig()).init(4)
    once, twice = asarray([2, 0, 3]), asarray([2, 0, 2])
    state.put(once, state.take(once))
    with pytest.raises(ValueError, match="occurs twice"):
        state.put(twice, state.take(twice))
    rows = Guard(GuardConfig()).init(4, leading=(2,))
    each = asarray([[0, 1], [1, 0]])
    rows.put(each, rows.take(each))


@pytest.mark.parametrize("n_problems", [0, -1])
def test_a_guard_needs_problems(n_problems: int):
    with pytest.raises(ValueError, match=f"n_problems = {n_problems}"):
        Guard(GuardConfig()).init(n_problems)


@checked(20)
@given(history=vote_histories(max_visits=8), config=configs())
def test_tensors_go_in_and_the_same_bits_come_out(history: History, config: GuardConfig):
    (base, last), (other, other_last) = (
        walk(history, config, asarray) for asarray in (np.array, torch.tensor)
    )
    same(arrays(last), arrays(other_last))
    for one, two in zip(base, other, strict=True):
        same(one.decision, two.decision)
        same(one.streams, two.streams)


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert isinstance(two[name], np.ndarray) and value.dtype == two[name].dtype, name
        assert value.tobytes() == two[name].tobytes(), f"{name}: signs of zero differ"


def test_rows_are_a_copy_so_that_a_step_can_be_thrown_away():
    guard = Guard(GuardConfig().set(label_from="memory"))
    votes = Votes.from_answers(np.array([[0, 1, 1]] * 2), n_samples=3, n_answers=2)
    state = guard.init(3, leading=(), n_answers=2)
    assert (state.label == -1).all() and state.memory.shape == (3, 2)
    before = arrays(state)
    rows, _ = guard.step(state.take(np.array([1, 0])), votes, Draws(*np.zeros((3, 2))))
    rows.put(np.array([0, 1]), rows.take(np.array([1, 0])))
    same(before, arrays(state))
