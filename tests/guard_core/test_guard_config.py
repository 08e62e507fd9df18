"""Settings: profiles, round trips, and errors that name field, value and bound."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from guard_histories import checked, configs
from hypothesis import given

from guard_core import ConfigError, GuardConfig

UNIT = "must lie in [0, 1]"
POSITIVE = "must lie in (0, 1]"
COUNT = "must be at least 1"

WRONG: list[tuple[str, Any, str]] = [
    ("W", 0, "must lie in [1, 10000]"),
    ("W", 2**63 - 1, "must lie in [1, 10000]"),
    ("W", 5.0, "must be of type int"),
    ("W", True, "must be of type int"),
    ("T_steady", 0, COUNT),
    ("T_steady", "3", "must be of type int"),
    *[(name, -0.01, UNIT) for name in ("tau_FR", "tau_MR", "theta_MR", "l1", "l2", "w_min")],
    *[(name, 1.01, UNIT) for name in ("beta_max", "p_skip", "skip_share", "minority_share")],
    *[(name, math.nan, UNIT) for name in ("tau_FR", "w_min", "p_skip")],
    ("tau_FR", "0.3", "must be of type float"),
    ("l1", None, "must be of type float"),
    ("l2", False, "must be of type float"),
    ("discount", 0.0, POSITIVE),
    ("discount", 1.5, POSITIVE),
    ("hysteresis", 1.5, UNIT),
    ("negative_scale", 1.5, UNIT),
    ("margin_power", -1, "must lie in [0, 8]"),
    ("min_share", 1.5, UNIT),
    ("brake", -0.1, UNIT),
    ("brake_on", "entropy", "flip_rate, match_rate"),
    ("brake_above", 1.5, UNIT),
    ("minority_reward", 0, POSITIVE),
    ("minority_reward", math.inf, POSITIVE),
    ("frs", 1, "must be of type bool"),
    ("mps", "yes", "must be of type bool"),
    ("rcsu", None, "must be of type bool"),
    ("tie_break", "last", "random, first, incumbent"),
    ("label_from", None, "current, frozen, memory"),
    ("flip_rate", "window", "windowed, instant"),
    ("weight_on", "gradient", "loss, advantage, reward"),
    ("beta_schedule", "cosine", "linear, saturating"),
    ("minority_over", "all", "samples, votes"),
    ("empty_minority", True, "keep, plain"),
    ("mix", "", "loss, bonus"),
    ("skip_cap", "ceil", "floor, at_least_one"),
    ("skip_order", 1, "random, first"),
    ("skip_by", ["drop"], "drop, mask"),
    ("advantage_scale", "unit", "group, batch, none"),
]


@pytest.mark.parametrize(("field", "value", "bound"), WRONG)
def test_a_wrong_value_names_field_value_and_bound(field: str, value: object, bound: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GuardConfig.from_dict({field: value})
    message = str(caught.value)
    assert message.startswith(field)
    assert repr(value) in message
    assert bound in message
    assert "\n" not in message


def test_every_field_is_checked() -> None:
    assert {field for field, _, _ in WRONG} == {field.name for field in fields(GuardConfig)}


@given(config=configs())
@checked(30)
def test_round_trips(config: GuardConfig) -> None:
    copy = GuardConfig.from_dict(config.to_dict())
    assert (copy, hash(copy)) == (config, hash(config))


def test_missing_fields_take_the_defaults_of_the_paper() -> None:
    assert GuardConfig.from_dict({}) == GuardConfig.paper()
    assert GuardConfig.from_dict({"W": 7}).W == 7


@pytest.mark.parametrize("name", ["", "Paper", "ttrl", "guard"])
def test_an_unknown_profile_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GuardConfig.profile(name)
    assert repr(name) in str(caught.value)
    for known in ("paper", "release", "off", "frs", "mps", "rcsu"):
        assert known in str(caught.value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="tau_fr"):
        GuardConfig.from_dict({"tau_fr": 0.3})


def test_a_config_error_is_a_value_error_and_a_config_is_frozen() -> None:
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(FrozenInstanceError):
        GuardConfig().W = 3  # type: ignore[misc]


def test_profiles_hold_the_numbers_of_the_table() -> None:
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
    assert GuardConfig().to_dict().items() >= (shared | paper).items()
    assert GuardConfig.release().to_dict().items() >= (shared | release).items()


def test_ablations_switch_parts() -> None:
    def parts(config: GuardConfig) -> list[bool]:
        return [config.frs, config.mps, config.rcsu]

    assert parts(GuardConfig.off()) == [False, False, False]
    assert parts(GuardConfig.only("frs")) == [True, False, False]
    assert parts(GuardConfig.only("mps")) == [False, True, False]
    assert parts(GuardConfig.only("rcsu")) == [False, False, True]
    for name in ("paper", "release", "off"):
        assert GuardConfig.profile(name) == getattr(GuardConfig, name)()
    assert GuardConfig.profile("mps") == GuardConfig.only("mps")
