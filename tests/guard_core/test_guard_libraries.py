"""One source, several array libraries: alike to the last bit where the float types agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from guard_histories import (
    DOUBLE,
    SINGLE,
    Batch,
    History,
    Library,
    arrays,
    checked,
    configs,
    vote_histories,
    walk,
)
from hypothesis import given

from guard_core import Draws, Guard, GuardConfig, Votes
from guard_core.arrays import square_root

LIBRARIES = [*DOUBLE, *SINGLE]


@pytest.mark.parametrize("libraries", [DOUBLE, SINGLE], ids=["float64", "float32"])
@checked(15)
@given(history=vote_histories(max_visits=8), config=configs())
def test_libraries_agree_to_the_last_bit(
    libraries: list[Library], history: History, config: GuardConfig
) -> None:
    base, last = walk(history, config, libraries[0])
    for library in libraries[1:]:
        other, other_last = walk(history, config, library)
        for one, two in zip(base, other, strict=True):
            same(one.decision, two.decision)
            same(one.streams, two.streams)
        same(arrays(last), arrays(other_last))


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("libraries", [DOUBLE, SINGLE], ids=["float64", "float32"])
def test_standard_deviations_agree_to_the_last_bit(libraries: list[Library], scale: str) -> None:
    """Every number of hits; square roots are not rounded alike by all libraries."""
    config = GuardConfig(advantage_scale=scale, weight_on="reward", label_from="frozen")
    for n_samples in (2, 8, 22, 23, 24, 31, 32, 48):
        answers = np.where(np.arange(n_samples) < np.arange(n_samples + 1)[:, None], 0, 1)
        draws: dict[str, Any] = dict.fromkeys(("tie", "skip", "pick"), np.zeros(n_samples + 1))
        batch = Batch(np.arange(n_samples + 1), answers, 2, **draws)
        history = History(n_samples + 1, (), n_samples, None, [batch])
        base = walk(history, config, libraries[0])[0][0]
        for library in libraries[1:]:
            same(base.streams, walk(history, config, library)[0][0].streams)


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype, name
        np.testing.assert_array_equal(value, two[name], err_msg=name)
        assert value.tobytes() == two[name].tobytes(), f"{name}: signs of zero differ"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_the_state_takes_library_and_float_type_from_like(library: Library) -> None:
    config = GuardConfig(label_from="memory")
    state = Guard(config).init(3, library.floats([0.0]), leading=(2,), n_answers=4)
    assert type(state.label) is type(library.floats([0.0]))
    assert state.match_rates.dtype == library.real
    assert state.memory.dtype == library.real
    assert tuple(state.memory.shape) == (2, 3, 4)
    assert tuple(state.flips.shape) == tuple(state.match_rates.shape) == (2, 3, 5)
    assert (np.asarray(state.label) == -1).all()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_rows_are_a_copy_so_that_a_step_can_be_thrown_away(library: Library) -> None:
    guard = Guard(GuardConfig(label_from="memory"))
    votes = Votes.from_answers(library.ints([[0, 1, 1]] * 2), n_samples=3, n_answers=2)
    draws = Draws(*(library.floats([0.0, 0.0]) for _ in range(3)))
    state = guard.init(3, library.floats([0.0]), n_answers=2)
    before = arrays(state)
    rows, _ = guard.step(state.take(library.ints([1, 0])), votes, draws)
    rows.put(library.ints([0, 1]), rows.take(library.ints([1, 0])))
    same(before, arrays(state))


def test_square_roots_are_rounded_correctly_next_to_powers_of_two():
    near = [power - k * 2.0**-51 * power for power in (0.25, 1.0, 4.0) for k in range(1, 50)]
    near += [0.25 - 2.0**-55, 1 - 2.0**-53]
    exact = [math.sqrt(value) for value in near]
    assert square_root(np.array(near)).tolist() == exact
    assert square_root(torch.tensor(near, dtype=torch.float64)).tolist() == exact
