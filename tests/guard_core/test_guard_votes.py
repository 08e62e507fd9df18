"""Votes check themselves; a guard of nothing is refused."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from guard_core import Draws, Guard, GuardConfig, Votes

LIBRARIES = pytest.mark.parametrize(
    "asarray", [np.asarray, array_api_strict.asarray, torch.asarray]
)


def test_shapes_must_match_and_have_problems_and_answers() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3\).*\(1, 2\)"):
        Votes(np.ones((1, 3), int), np.ones((1, 2), int), 8, 8)
    with pytest.raises(ValueError, match=r"\(\.\.\., P, A\)"):
        Votes(np.ones(3, int), np.ones(3, int), 8, 8)


@pytest.mark.parametrize(("n_votes", "n_samples"), [(8, 9), (8, 0), (0, 0), (8, -1)])
def test_sizes_must_be_possible(n_votes: int, n_samples: int) -> None:
    counts = np.zeros((1, 2), int)
    with pytest.raises(ValueError, match=f"n_samples = {n_samples}.*n_votes = {n_votes}"):
        Votes(counts, counts, n_votes, n_samples)


@pytest.mark.parametrize("xp", [np, array_api_strict])
@pytest.mark.parametrize(
    ("counts", "samples", "message"),
    [
        ([[2, 3]], [[2, -1]], "0 <= samples <= counts"),
        ([[2, 3]], [[3, 0]], "0 <= samples <= counts"),
        ([[5, 4]], [[0, 0]], "more than n_votes = 8"),
        ([[4, 4]], [[3, 2]], "more than n_samples = 4"),
    ],
)
def test_values_must_be_possible(
    xp: object, counts: list[list[int]], samples: list[list[int]], message: str
) -> None:
    arrays = (xp.asarray(values) for values in (counts, samples))  # type: ignore[attr-defined]
    votes = Votes(*arrays, 8, 4)
    with pytest.raises(ValueError, match=message):
        votes.check()


@LIBRARIES
@pytest.mark.parametrize("wrong", [7, -2])
def test_answer_ids_outside_of_their_range_are_refused(asarray: Any, wrong: int) -> None:
    good = [[0, 2, -1, 1]]
    assert Votes.from_answers(asarray(good), n_samples=2, n_answers=3).n_votes == 4
    with pytest.raises(ValueError, match=r"must lie in -1..2; raise n_answers = 3"):
        Votes.from_answers(asarray([[0, wrong, -1, 1]]), n_samples=2, n_answers=3)
    with pytest.raises(ValueError, match=r"must be integers, not .*float64"):
        Votes.from_answers(np.array(good, float), n_samples=2, n_answers=3)


def test_answer_ids_on_another_device_are_looked_at_where_asked_for() -> None:
    other = array_api_strict.Device("device1")
    ids = array_api_strict.asarray([[0, 7, -1, 1]], device=other)
    votes = Votes.from_answers(ids, n_samples=2, n_answers=3)
    votes.check()  # sees no id that was dropped
    with pytest.raises(ValueError, match=r"must lie in -1..2"):
        Votes.from_answers(ids, n_samples=2, n_answers=3, check=True)
    Votes.from_answers(np.array([[0, 7]]), n_samples=2, n_answers=3, check=False)


@LIBRARIES
@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.5])
@pytest.mark.parametrize("name", ["tie", "skip", "pick"])
def test_draws_are_numbers_from_0_to_1(asarray: Any, wrong: float, name: str) -> None:
    good = asarray([0.0, 0.5, 1.0])  # single precision makes 1 of a double just below
    draws = dict.fromkeys(("tie", "skip", "pick"), good)
    Draws(**draws)
    with pytest.raises(ValueError, match=rf"draws: {name} must lie in \[0, 1\)"):
        Draws(**draws | {name: asarray([0.0, wrong, 0.5])})
    empty = asarray(np.zeros(0))
    Draws(empty, empty, empty)


@LIBRARIES
def test_a_problem_twice_in_a_batch_is_refused(asarray: Any) -> None:
    like = asarray(np.zeros(1))
    state = Guard(GuardConfig()).init(4, like=like)
    once, twice = asarray([2, 0, 3]), asarray([2, 0, 2])
    state.put(once, state.take(once))
    with pytest.raises(ValueError, match="occurs twice"):
        state.put(twice, state.take(twice))
    rows = Guard(GuardConfig()).init(4, like=like, leading=(2,))
    each = asarray([[0, 1], [1, 0]])
    rows.put(each, rows.take(each))


@pytest.mark.parametrize("n_problems", [0, -1])
def test_a_guard_needs_problems(n_problems: int) -> None:
    with pytest.raises(ValueError, match=f"n_problems = {n_problems}"):
        Guard(GuardConfig()).init(n_problems, np.zeros(0))
