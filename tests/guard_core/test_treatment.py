"""Decisions dealt to the problems of a batch, and settings of the authors' scripts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard_core import ConfigError, GuardConfig
from guard_core.config import SCRIPTS
from guard_core.decision import Route, Treatment, rerouted


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_dealing_keeps_the_treatments_and_ignores_the_order_of_rows(size: int, seed: int):
    rng = np.random.default_rng(seed)
    problems, draws, order = rng.permutation(99)[:size], rng.random(size), rng.permutation(size)
    weights = rng.choice([0.35, 0.5, 0.85, 1.0], size)
    own = Treatment(weights, rng.random(size), rng.random(size) < 0.3)
    dealt = own.permuted(problems, draws)
    assert sorted(zip(*dealt, strict=True)) == sorted(zip(*own, strict=True))
    again = Treatment(*(part[order] for part in own)).permuted(problems[order], draws[order])
    for part, other in zip(dealt, again, strict=True):
        np.testing.assert_array_equal(part[order], other)
    same = Treatment(*(np.full(size, part[0]) for part in own))
    for part, other in zip(same, same.permuted(problems, draws), strict=True):
        np.testing.assert_array_equal(part, other)


def test_every_problem_gets_every_treatment_equally_often():
    rng, n = np.random.default_rng(0), 20_000
    problems, draws = np.tile(np.arange(4), (n, 1)), rng.random((n, 4))
    own = Treatment(*(np.tile(np.arange(4.0), (n, 1)) for _ in range(3)))
    share = [(own.permuted(problems, draws).weight == k).mean(axis=0) for k in range(4)]
    np.testing.assert_allclose(share, 0.25, atol=0.02)


def test_routes_follow_the_skips():
    route = np.array([Route.STABLE, Route.SKIPPED, Route.SKIPPED, Route.AT_RISK], np.int8)
    found = rerouted(route, np.array([True, False, True, False]))
    assert found.tolist() == [Route.SKIPPED, Route.HIGH_RISK, Route.SKIPPED, Route.AT_RISK]
    assert found.dtype == route.dtype


def test_the_authors_scripts():
    """FRS is on for Qwen2.5-7B alone, and all set theta_MR = .5 in the released code."""
    release = replace(GuardConfig.release(), theta_MR=0.5)
    for cell in SCRIPTS:
        frs = cell.startswith(("qwen2.5-7b/", "qwen-"))
        assert GuardConfig.release_scripts(cell) == replace(release, frs=frs)
    with pytest.raises(ConfigError, match=r"cell = 'x': unknown, use one of llama-3.2-3b/aime24"):
        GuardConfig.release_scripts("x")
