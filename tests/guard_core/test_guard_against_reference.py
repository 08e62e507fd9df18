"""Array form and scalar form of the guard agree to the bit, over random histories and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guard_histories import Batch, History, arrays, checked, configs, vote_histories, walk
from hypothesis import given
from scalar_guard import ScalarGuard, Visit

from guard_core import GuardConfig


def visits(batch: Batch, n_samples: int, index: tuple[int, ...]) -> list[Visit]:
    """The batch of one replicate for the reference."""
    return [
        Visit(
            problem=int(problem),
            answers=[int(answer) for answer in batch.answers[index][place]],
            n_samples=n_samples,
            tie=float(batch.tie[index][place]),
            skip=float(batch.skip[index][place]),
            pick=float(batch.pick[index][place]),
        )
        for place, problem in enumerate(batch.own_problems[index])
    ]


def compare(history: History, config: GuardConfig) -> None:
    """Assert that arrays and plain numbers agree on the whole history of every replicate."""
    walked, state = walk(history, config)
    for index in np.ndindex(history.leading):
        guard = ScalarGuard(config)
        if history.prime is not None:
            guard.prime(visits(history.prime, history.n_samples, index))
        for batch, step in zip(history.batches, walked, strict=True):
            shown = visits(batch, history.n_samples, index)
            verdicts = guard.step(shown)
            got = {name: values[index] for name, values in step.decision.items()}
            compare_decision(got, verdicts)
            streams = {name: values[index] for name, values in step.streams.items()}
            compare_advantages(streams, got, verdicts, guard.advantages(shown, verdicts), config)
        compare_state({name: values[index] for name, values in arrays(state).items()}, guard)


def compare_decision(got: dict[str, Any], verdicts: list[Any]) -> None:
    names = ("label", "flipped", "tied", "visits", "had_competition", "route", "high_risk")
    rates = ("match_rate", "flip_rate", "mean_match_rate", "weight", "beta")
    for name in (*names, *rates):
        assert got[name].tolist() == [getattr(v, name) for v in verdicts], name
    assert got["skip"].tolist() == [v.skipped for v in verdicts]
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
) -> None:
    shares = (1 - got["beta"][:, None], got["beta"][:, None])
    if config.mix == "bonus":
        shares = (1, 1)
    width = streams["A1_answer"].shape[-1] - 1
    majority, minority = (
        share * streams[f"{name}_answer"][:, :width]
        for share, name in zip(shares, ("A1", "A2"), strict=True)
    )
    scale = config.negative_scale
    both = sum(np.where(part < 0, scale * part, part) for part in (majority, minority))
    np.testing.assert_array_equal(both, [values[:width] for values in advantages])
    weights = [v.weight if config.weight_on == "loss" else 1.0 for v in verdicts]
    assert streams["policy_weight"].tolist() == weights
    dropped = [v.skipped and config.skip_by == "drop" for v in verdicts]
    assert streams["policy_drop"].tolist() == dropped


def compare_state(state: dict[str, Any], guard: ScalarGuard) -> None:
    for problem, known in guard.problems.items():
        for name in ("label", "visits", "c2_fired", "steady", "mps_active", "had_competition"):
            assert state[name][problem] == getattr(known, name), name
        for name in ("flips", "match_rates"):
            assert state[name][problem].tolist() == getattr(known, name), name
        memory = state["memory"][problem].tolist()
        assert known.memory[: len(memory)] == memory and not any(known.memory[len(memory) :])
    unseen = set(range(len(state["label"]))) - set(guard.problems)
    assert all((state["label"][p], state["visits"][p]) == (-1, 0) for p in unseen)


@pytest.mark.parametrize("profile", ["paper", "release", "off", "frs", "mps", "rcsu"])
@checked(10)
@given(history=vote_histories(max_visits=18))
def test_profiles_follow_the_reference(profile: str, history: History) -> None:
    compare(history, GuardConfig.profile(profile))


@checked(60)
@given(history=vote_histories(), config=configs())
def test_every_option_follows_the_reference(history: History, config: GuardConfig) -> None:
    compare(history, config)
