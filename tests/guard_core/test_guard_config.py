import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from guard_histories import checked, configs
from hypothesis import given
from hypothesis import strategies as st

from guard_core import FRS, MPS, RCSU, Brake, GuardConfig, Rates
from guard_core.config import (
    SCRIPTS,
    USUAL,
    ConfigError,
    Count,
    Interval,
    Positive,
    Share,
    ShareBelowOne,
    fault,
    settings,
)
from guard_core.decision import Route, Treatment, rerouted
from guard_core.schedule import brake_factor, rate_factor, scheduled_steps, signal, step_factors

BOUNDS = {
    "W": (0, 2**63 - 1),
    "T_steady": (0,),
    "margin_power": (-1, 9),
    **dict.fromkeys(("discount", "minority_reward"), (0.0, 1.5, math.inf)),
}
"""Values outside of a number's bounds; shares have the others."""


@pytest.mark.parametrize("name", USUAL)
def test_a_wrong_value_names_field_value_and_bound(name: str):
    values: list[object] = [None, "no", ["yes"]]
    if type(USUAL[name]) in (int, float):
        values += [True, *BOUNDS.get(name, (-0.01, 1.01, math.nan))]
    for value in values:
        with pytest.raises(ConfigError) as caught:
            GuardConfig.from_dict({name: value})
        message = str(caught.value)
        assert message.startswith(f"{name} = {value!r}: must ") and "\n" not in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RCSU(theta_MR=2), r"theta_MR = 2: must lie in \[0, 1\]"),
        (lambda: GuardConfig(frs=True), "frs = True: must be of type FRS"),  # type: ignore[arg-type]
        (lambda: GuardConfig(labels=None), "labels = None: must be of type Labels"),  # type: ignore[arg-type]
        (lambda: GuardConfig().set(w=3), "w: no such guard setting"),
        (lambda: GuardConfig.from_dict({"rates": {"w": 3}}), "w: no such guard setting"),
        (
            lambda: GuardConfig(rcsu=None).set(theta_MR=0.4),
            "theta_MR = 0.4: is a setting of rcsu, which is off; set rcsu = true",
        ),
    ],
)
def test_a_wrong_composition_is_refused(make: Any, message: str):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        make()


def test_settings_are_changed_by_their_short_names():
    config = GuardConfig(frs=None, rcsu=RCSU(theta_MR=0.6))
    assert config == GuardConfig().set(frs=False, theta_MR=0.6) and config.acts
    assert config.set(frs=True, W=3, l1=0.2, brake=0.5) == GuardConfig(
        rates=Rates(W=3), frs=FRS(l1=0.2), rcsu=RCSU(theta_MR=0.6), brake=Brake(brake=0.5)
    )
    assert config.set(rcsu=True) == config and config.set(mps=False, rcsu=False).acts is False
    assert config.flat() == USUAL | {"frs": False, "theta_MR": 0.6}
    assert list(config.flat()) == list(USUAL)


def test_all_that_a_part_that_is_off_leaves_in_the_trace_is_the_papers():
    release = GuardConfig.release()
    assert settings(replace(release, mps=None), 64, 32).minority_over_samples
    assert settings(replace(release, rcsu=None), 64, 32).theta_MR == 0.5
    assert not settings(replace(release, frs=None), 64, 32).frs
    assert settings(GuardConfig(mps=MPS(minority_share=0.5)), 64, 32).least == 16


@given(config=configs())
@checked(30)
def test_round_trips(config: GuardConfig):
    for noted in (config.to_dict(), json.loads(json.dumps(config.to_dict())), config.flat()):
        copy = GuardConfig.from_dict(noted)
        assert (copy, hash(copy)) == (config, hash(config))


def test_profiles_hold_the_numbers_of_the_table():
    shared = {
        "tau_FR": 0.3, "tau_MR": 0.6, "l1": 0.5, "l2": 0.3, "w_min": 0.1,
        "beta_max": 0.3, "T_steady": 3, "p_skip": 0.7, "W": 5,
        "skip_share": 0.25, "minority_share": 0.25, "frs": True, "mps": True, "rcsu": True,
    }  # fmt: skip
    paper = {
        "flip_rate": "windowed", "weight_on": "loss", "minority_over": "samples", "mix": "loss",
        "beta_schedule": "linear", "theta_MR": 0.5, "skip_cap": "floor", "skip_order": "random",
        "skip_by": "drop", "tie_break": "random", "label_from": "current", "discount": 1.0,
        "empty_minority": "keep", "advantage_scale": "group",
    }  # fmt: skip
    release = {
        "flip_rate": "instant", "weight_on": "advantage", "minority_over": "votes",
        "mix": "bonus", "beta_schedule": "saturating", "theta_MR": 0.7,
        "skip_cap": "at_least_one", "skip_order": "first", "skip_by": "mask",
        "tie_break": "first",
    }  # fmt: skip
    assert GuardConfig().flat().items() >= (shared | paper).items()
    assert GuardConfig.release().flat().items() >= (shared | release).items()


def test_ablations_switch_parts():
    assert GuardConfig.off() == GuardConfig(frs=None, mps=None, rcsu=None)
    for part in (parts := {"frs", "mps", "rcsu"}):
        assert GuardConfig.only(part) == GuardConfig(**dict.fromkeys(parts - {part}))
    for name in ("paper", "release", "off"):
        assert GuardConfig.profile(name) == getattr(GuardConfig, name)()
    assert GuardConfig.profile("mps") == GuardConfig.only("mps")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (1, bool, "x = 1: must be of type bool"),
        (True, float, "x = True: must be of type float"),
        (2.0, Count, "x = 2.0: must be of type int"),
        (0, Count, "x = 0: must be at least 1"),
        (math.inf, Positive, "x = inf: must be above 0 and finite"),
        (math.nan, float, "x = nan: must be a finite number"),
        (1.0, ShareBelowOne, "x = 1.0: must lie in [0, 1)"),
        (1.0, Annotated[float, Interval("(-inf, 0]")], "x = 1.0: must be at most 0"),
        ("1", Count | None, "x = '1': must be of type int"),
        ("b", Literal["a", 1], "x = 'b': must be one of a, 1"),
        ([1.0], tuple[float, ...], "x = [1.0]: must be of type tuple"),
        ((0.5,), tuple[Share, Share], "x = (0.5,): must have 2 entries"),
        ((0.5, 2.0), tuple[Share, ...], "x[1] = 2.0: must lie in [0, 1]"),
        (((0.5, -1.0),), tuple[tuple[float, Share], ...], "x[0][1] = -1.0: must lie in [0, 1]"),
        (3, dict[str, int], "x = 3: must be of type dict"),
        ("a", int | float | str, None),
        ((0.5, 1), tuple[Share, Count], None),
        (3, float, None),
    ],
)
def test_a_value_that_does_not_fit_any_part_of_its_type(value: Any, kind: Any, message: Any):
    assert fault("x", value, kind) == message


FLIPPED = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
MATCH = np.array([[0.5, 0.75, 0.25, 0.0], [1.0, 1.0, 0.0, 0.0]])
VISITED = np.array([[True, True, True, False], [True, True, False, False]])


def test_the_signal_counts_all_problems_for_flips_and_visited_ones_for_match_rates():
    flips = signal(FLIPPED, MATCH, VISITED, GuardConfig())
    assert flips.tolist() == [0.5, 0.0]
    match = signal(FLIPPED, MATCH, VISITED, GuardConfig().set(brake_on="match_rate"))
    assert match.tolist() == [0.5, 1.0]
    nothing = signal(FLIPPED, MATCH, VISITED & False, GuardConfig().set(brake_on="match_rate"))
    assert nothing.tolist() == [0.0, 0.0]


def test_the_rate_falls_only_above_the_limit():
    value = np.array([0.2, 0.21, 0.0])
    assert brake_factor(value, GuardConfig().set(brake=0.5)).tolist() == [1.0, 0.5, 1.0]
    assert brake_factor(value, GuardConfig().set(brake=0.0)).tolist() == [1.0, 0.0, 1.0]
    assert brake_factor(value, GuardConfig()).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("n", range(1, 60))
def test_a_signal_on_its_limit_is_not_above_it_by_rounding(n):
    config = GuardConfig().set(brake=0.5, brake_on="match_rate", brake_above=0.7)
    value = signal(np.zeros(n), np.full(n, 0.7), np.ones(n, bool), config)
    assert brake_factor(value, config) == 1.0


def test_it_warms_up_and_falls_to_zero() -> None:
    factors = [rate_factor(done, 100, 0.03) for done in range(100)]
    assert factors[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert all(a >= b for a, b in pairwise(factors[3:]))
    assert 0 < factors[-1] < 1e-3
    assert rate_factor(0, 10, 0.0) == 1.0
    assert rate_factor(6, 100, 0.07) == 1.0  # .07 * 100 is 7 and a rounding error


@pytest.mark.parametrize(
    ("sizes", "wanted"), [((64, 8, 1), [8] * 8), ((21, 8, 3), [3, 3, 2]), ((16, 8, 8), [1, 1])]
)
def test_every_optimizer_step_has_its_rate_also_where_the_last_batch_is_smaller(sizes, wanted):
    assert scheduled_steps(*sizes) == wanted
    factors, n = step_factors(wanted, 12, 0.03), 12 * sum(wanted)
    assert [len(batch) for batch in factors] == wanted * 12
    flat = [factor for batch in factors for factor in batch]
    assert flat == [rate_factor(done, n, 0.03) for done in range(n)]


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
@checked(100)
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
    skip, high_risk, contested = np.array(
        [[1, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0]], np.bool_
    )
    found = rerouted(skip, high_risk, contested)
    wanted = [Route.SKIPPED, Route.HIGH_RISK, Route.SKIPPED, Route.AT_RISK, Route.STABLE]
    assert found.tolist() == wanted and found.dtype == np.int8


def test_the_authors_scripts():
    """FRS is on for Qwen2.5-7B alone, and all set theta_MR = .5 in the released code."""
    release = GuardConfig.release().set(theta_MR=0.5)
    for cell in SCRIPTS:
        frs = cell.startswith(("qwen2.5-7b/", "qwen-"))
        assert GuardConfig.release_scripts(cell) == release.set(frs=frs)
    with pytest.raises(ConfigError, match=r"cell = 'x': unknown, use one of llama-3.2-3b/aime24"):
        GuardConfig.release_scripts("x")
