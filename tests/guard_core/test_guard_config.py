"""Settings: profiles, round trips, and errors that name field, value and bound."""

import math
from dataclasses import Field, FrozenInstanceError, fields

import pytest
from guard_histories import checked, configs
from hypothesis import given

from guard_core import ConfigError, GuardConfig

PARTS = ("frs", "mps", "rcsu")
BOUNDS = {
    "W": (0, 2**63 - 1),
    "T_steady": (0,),
    "margin_power": (-1, 9),
    **dict.fromkeys(("discount", "minority_reward"), (0.0, 1.5, math.inf)),
}
"""Values outside of a number's bounds; shares have the others."""


@pytest.mark.parametrize("field", fields(GuardConfig), ids=lambda field: field.name)
def test_a_wrong_value_names_field_value_and_bound(field: Field):
    values: list[object] = [None, "no", ["yes"]]
    if type(field.default) in (int, float):
        values += [True, *BOUNDS.get(field.name, (-0.01, 1.01, math.nan))]
    for value in values:
        with pytest.raises(ConfigError) as caught:
            GuardConfig.from_dict({field.name: value})
        message = str(caught.value)
        assert message.startswith(f"{field.name} = {value!r}: must ") and "\n" not in message


@given(config=configs())
@checked(30)
def test_round_trips(config: GuardConfig):
    copy = GuardConfig.from_dict(config.to_dict())
    assert (copy, hash(copy)) == (config, hash(config))


def test_missing_fields_take_the_defaults_of_the_paper():
    assert GuardConfig.from_dict({}) == GuardConfig.paper()
    assert GuardConfig.from_dict({"W": 7}).W == 7


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        GuardConfig.profile("Paper")
    assert "'Paper'" in str(caught.value)
    for known in ("paper", "release", "off", "frs", "mps", "rcsu"):
        assert known in str(caught.value)


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match="tau_fr"):
        GuardConfig.from_dict({"tau_fr": 0.3})


def test_a_config_error_is_a_value_error_and_a_config_is_frozen():
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(FrozenInstanceError):
        GuardConfig().W = 3  # type: ignore[misc]


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
    assert GuardConfig().to_dict().items() >= (shared | paper).items()
    assert GuardConfig.release().to_dict().items() >= (shared | release).items()


def test_ablations_switch_parts():
    assert [getattr(GuardConfig.off(), part) for part in PARTS] == [False] * 3
    for one in PARTS:
        assert [getattr(GuardConfig.only(one), part) for part in PARTS] == [one == p for p in PARTS]
    for name in ("paper", "release", "off"):
        assert GuardConfig.profile(name) == getattr(GuardConfig, name)()
    assert GuardConfig.profile("mps") == GuardConfig.only("mps")
