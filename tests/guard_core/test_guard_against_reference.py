"""The guard against the scalar reference, over random histories and every option."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from guard_histories import (
    DOUBLE,
    NUMPY,
    SINGLE,
    Batch,
    History,
    Library,
    Walked,
    checked,
    configs,
    vote_histories,
    walk,
)
from hypothesis import given
from scalar_advantages import scalar_advantages
from scalar_guard import ScalarGuard, Verdict, Visit

from guard_core import GuardConfig


def visits(batch: Batch, n_samples: int, lead: tuple[int, ...]) -> list[Visit]:
    """The batch of one replicate for the reference."""
    return [
        Visit(
            problem=(lead, int(problem)),
            answers=[int(answer) for answer in batch.answers[lead][place]],
            n_samples=n_samples,
            tie=float(batch.tie[lead][place]),
            skip=float(batch.skip[lead][place]),
            pick=float(batch.pick[lead][place]),
        )
        for place, problem in enumerate(batch.own_problems[lead])
    ]


def expected(
    history: History, config: GuardConfig
) -> Iterator[tuple[int, tuple[int, ...], list[Visit], list[Verdict]]]:
    """The reference's verdicts on every batch of every replicate."""
    guard = ScalarGuard(config.to_dict())
    for lead in np.ndindex(history.leading):
        if history.prime is not None:
            guard.prime(visits(history.prime, history.n_samples, lead))
        for number, batch in enumerate(history.batches):
            shown = visits(batch, history.n_samples, lead)
            yield number, lead, shown, guard.step(shown)


def compare(history: History, config: GuardConfig, library: Library = NUMPY) -> None:
    """Assert that guard and reference agree on the whole history."""
    walked, _ = walk(history, config, library)
    for number, lead, shown, verdicts in expected(history, config):
        compare_decision(walked[number], lead, verdicts, library)
        compare_advantages(walked[number], lead, shown, verdicts, config, library)


def compare_decision(
    walked: Walked, lead: tuple[int, ...], verdicts: list[Verdict], library: Library
) -> None:
    got = {name: values[lead] for name, values in walked.decision.items()}
    labels = [-1 if v.label is None else v.label for v in verdicts]
    assert got["label"].tolist() == labels
    for name in ("flipped", "tied", "visits", "had_competition", "high_risk", "skip", "route"):
        assert got[name].tolist() == [getattr(v, name) for v in verdicts], name
    for name in ("match_rate", "flip_rate", "mean_match_rate", "weight", "beta"):
        want = [float(getattr(v, name)) for v in verdicts]
        np.testing.assert_allclose(got[name], want, rtol=precision(library), err_msg=name)
    for place, verdict in enumerate(verdicts):
        candidates = {int(a) for a in np.flatnonzero(got["minority"][place])}
        assert candidates == set(verdict.candidates)
        for answer, n in verdict.candidates.items():
            assert got["candidate_votes"][place, answer] == n


def compare_advantages(
    walked: Walked,
    lead: tuple[int, ...],
    shown: list[Visit],
    verdicts: list[Verdict],
    config: GuardConfig,
    library: Library,
) -> None:
    got = {name: values[lead] for name, values in walked.streams.items()}
    want = scalar_advantages(shown, verdicts, config.to_dict())
    close = {"rtol": 20 * precision(library), "atol": 20 * precision(library)}
    for stream, values in zip(("A1", "A2"), want, strict=True):
        np.testing.assert_allclose(got[stream], values, err_msg=stream, **close)
        kept = np.array([visit.answers[: visit.n_samples] for visit in shown])
        by_answer = np.take_along_axis(got[f"{stream}_answer"], kept, axis=-1)
        np.testing.assert_array_equal(by_answer, got[stream], err_msg=stream)
    shares = np.array([[1.0, 1.0]] * len(shown))
    if config.mix == "loss":
        shares = np.array([[1 - float(v.beta), float(v.beta)] for v in verdicts])
    for place, name in enumerate(("policy_majority", "policy_minority")):
        mixed = shares[:, place, None] * np.array(want[place])
        np.testing.assert_allclose(got[name], mixed, err_msg=name, **close)
    weights = [float(v.weight) if config.weight_on == "loss" else 1.0 for v in verdicts]
    np.testing.assert_allclose(got["policy_weight"], weights, **close)
    dropped = [v.skip and config.skip_by == "drop" for v in verdicts]
    assert got["policy_drop"].tolist() == dropped


def precision(library: Library) -> float:
    return 1e-13 if library in DOUBLE else 1e-6


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
