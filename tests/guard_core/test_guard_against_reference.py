"""Array form and scalar form of the guard agree, over random histories and every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from guard_histories import (
    DOUBLE,
    NUMPY,
    SINGLE,
    Batch,
    History,
    Library,
    checked,
    configs,
    vote_histories,
    walk,
)
from hypothesis import given
from scalar_guard import ScalarGuard, Visit

from guard_core import GuardConfig


def visits(batch: Batch, n_samples: int, index: tuple[int, ...]) -> list[Visit]:
    """The batch of one replicate for the reference."""
    return [
        Visit(
            problem=(index, int(problem)),
            answers=[int(answer) for answer in batch.answers[index][place]],
            n_samples=n_samples,
            tie=float(batch.tie[index][place]),
            skip=float(batch.skip[index][place]),
            pick=float(batch.pick[index][place]),
        )
        for place, problem in enumerate(batch.own_problems[index])
    ]


def expected(
    history: History, config: GuardConfig
) -> Iterator[tuple[int, tuple[int, ...], list[Any], list[list[float]]]]:
    """The verdicts and the advantages per answer of every batch of every replicate."""
    guard = ScalarGuard(config)
    for index in np.ndindex(history.leading):
        if history.prime is not None:
            guard.prime(visits(history.prime, history.n_samples, index))
        for number, batch in enumerate(history.batches):
            shown = visits(batch, history.n_samples, index)
            verdicts = guard.step(shown)
            yield number, index, verdicts, guard.advantages(shown, verdicts)


def compare(history: History, config: GuardConfig, library: Library = NUMPY) -> None:
    """Assert that arrays and plain numbers agree on the whole history: to the bit in doubles."""
    walked, _ = walk(history, config, library)
    for number, index, verdicts, advantages in expected(history, config):
        got = {name: values[index] for name, values in walked[number].decision.items()}
        compare_decision(got, verdicts, library)
        streams = {name: values[index] for name, values in walked[number].streams.items()}
        compare_advantages(streams, got, verdicts, advantages, config, library)


def compare_decision(got: dict[str, Any], verdicts: list[Any], library: Library) -> None:
    for name in ("label", "flipped", "tied", "visits", "had_competition", "route"):
        assert got[name].tolist() == [getattr(v, name) for v in verdicts], name
    assert got["skip"].tolist() == [v.skipped for v in verdicts]
    assert got["high_risk"].tolist() == [v.high_risk for v in verdicts]
    for name in ("match_rate", "flip_rate", "mean_match_rate", "weight", "beta"):
        close(got[name], [getattr(v, name) for v in verdicts], library, name)
    for place, verdict in enumerate(verdicts):
        candidates = np.flatnonzero(got["minority"][place]).tolist()
        assert candidates == [a for a, marked in enumerate(verdict.minority) if marked]
        for answer in candidates:
            assert got["candidate_votes"][place, answer] == verdict.candidate_votes[answer]


def compare_advantages(
    streams: dict[str, Any],
    got: dict[str, Any],
    verdicts: list[Any],
    advantages: list[list[float]],
    config: GuardConfig,
    library: Library,
) -> None:
    shares = (1 - got["beta"][:, None], got["beta"][:, None])
    if config.mix == "bonus":
        shares = (1, 1)
    width = streams["A1_answer"].shape[-1] - 1
    majority, minority = (
        share * streams[f"{name}_answer"][:, :width]
        for share, name in zip(shares, ("A1", "A2"), strict=True)
    )
    wanted = [values[:width] for values in advantages]
    close(majority + minority, wanted, library, "advantages", 20)
    weights = [v.weight if config.weight_on == "loss" else 1.0 for v in verdicts]
    close(streams["policy_weight"], weights, library, "weight")
    dropped = [v.skipped and config.skip_by == "drop" for v in verdicts]
    assert streams["policy_drop"].tolist() == dropped


def close(got: Any, want: Any, library: Library, name: str, factor: int = 1) -> None:
    if library in DOUBLE:
        np.testing.assert_array_equal(got, want, err_msg=name)
    else:
        np.testing.assert_allclose(got, want, rtol=factor * 1e-6, atol=factor * 1e-6, err_msg=name)


@pytest.mark.parametrize("profile", ["paper", "release", "off", "frs", "mps", "rcsu"])
@checked(25)
@given(history=vote_histories(max_visits=18))
def test_profiles_follow_the_reference(profile: str, history: History) -> None:
    compare(history, GuardConfig.profile(profile))


@checked(250)
@given(history=vote_histories(), config=configs())
def test_every_option_follows_the_reference(history: History, config: GuardConfig) -> None:
    compare(history, config)


@pytest.mark.parametrize("library", [*DOUBLE[1:], *SINGLE], ids=lambda library: library.name)
@checked(15)
@given(history=vote_histories(max_visits=8), config=configs())
def test_other_libraries_follow_the_reference(
    library: Library, history: History, config: GuardConfig
) -> None:
    compare(history, config, library)
