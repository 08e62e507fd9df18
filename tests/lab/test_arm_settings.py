from dataclasses import replace

import pytest

from guard_core import GuardConfig
from lab.arm_settings import arm_of, with_arm
from lab.base.arms import UNGUARDED, WITH_RULES, arm, title
from lab.base.errors import UserError
from lab.base.settings import from_values, to_values
from real import TrainConfig
from real.settings.resolve import settings_of as train_settings
from sim import SimConfig
from sim.settings.resolve import settings_of as sim_settings

OFF = GuardConfig.off()
GUARD = GuardConfig.paper()
CONFIGS = pytest.mark.parametrize("config", [SimConfig, TrainConfig])
BOTH = pytest.mark.parametrize("read", [sim_settings, train_settings], ids=["sim", "real"])


@CONFIGS
def test_a_rule_without_a_guard_is_the_rule_alone(config):
    assert config().guard == GUARD and config(rule="scrl").guard == OFF
    assert config(rule="maj_at_n").guard == arm("maj_at_n").guard
    assert config(rule="scrl", guard=GuardConfig.paper()).guard == GUARD
    assert replace(config(), rule="scrl").guard == GUARD
    for made in (config(rule="scrl"), config(rule="scrl", guard=GuardConfig())):
        assert from_values(to_values(made), config, "run.json") == made


@BOTH
@pytest.mark.parametrize(
    ("options", "file", "name"),
    [
        ({}, "", "guard"),
        ({"rule": "scrl"}, "", "scrl"),
        ({"arm": "scrl"}, "", "scrl"),
        ({}, 'rule = "scrl"', "scrl"),
        ({}, 'rule = "rent"', "rent"),
        ({"rule": "rent"}, 'rule = "scrl"\nrule_options = {t_pos = 0.5}', "rent"),
        ({"rule": "maj_at_n"}, 'rule = "scrl"', "maj_at_n"),
        ({"rule": "scrl", "profile": "paper"}, "", "scrl+guard"),
        ({"profile": "frs"}, 'rule = "scrl"', "scrl+frs"),
        ({"rule": "scrl", "arm": "guard"}, "", "scrl+guard"),
        ({"arm": "guard"}, 'rule = "scrl"', "scrl+guard"),
        ({"arm": "srt"}, 'rule = "scrl"', "srt"),
        ({"arm": "ttrl"}, 'rule = "scrl"', "ttrl"),
        ({"arm": "scrl+guard"}, "", "scrl+guard"),
        ({"rule": "scrl", "guard.W": 5}, "", "scrl+guard"),
        ({"rule": "scrl"}, "[guard]\n", "scrl+guard"),
        ({"rule": "scrl"}, "[guard]\nW = 3\n", "scrl+custom"),
        ({"profile": "off"}, "", "ttrl"),
    ],
)
def test_options_and_files_mean_the_same_in_both_worlds(tmp_path, read, options, file, name):
    if file:
        (tmp_path / "s.toml").write_text(file)
        options = {**options, "config": tmp_path / "s.toml"}
    assert arm_of(read(options)).name == name


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arm": "guard", "profile": "paper"}, "--arm and --profile: both set the guard"),
        ({"arm": "srt", "rule": "scrl"}, "trains by rule srt, and --rule is scrl"),
        ({"arm": "matched_srt+guard"}, "needs --step-factor"),
    ],
)
def test_options_that_contradict_each_other(read, options, message):
    with pytest.raises(UserError, match=message.replace("+", r"\+")):
        read(options)


@CONFIGS
def test_settings_are_the_arm_that_they_came_from(config):
    for name in ("ttrl", "truth", "srt", "maj_at_n", *WITH_RULES):
        assert arm_of(with_arm(config(), arm(name))) == arm(name)
    for name in WITH_RULES:
        assert arm_of(with_arm(config(), arm(f"srt+{name}"))).name == f"srt+{name}"
    for name in (*UNGUARDED, "srt+guard"):
        name = "" if name == "guard" else f"_{name}"
        matched = with_arm(config(), arm(f"matched{name}", 0.5))
        assert arm_of(matched, f"matched{name}").name == f"matched{name}"


@CONFIGS
def test_options_keep_the_name_and_other_guards_do_not(config):
    assert arm_of(config(rule="srt", rule_options={"keep": 0.5})).name == "srt"
    assert arm_of(config(guard=OFF, step_factor=0.5)).name == "matched"
    assert arm_of(config(rule="srt", step_factor=0.5)).name == "srt+custom"
    assert arm_of(config(guard=GuardConfig().set(W=3)), "guard").name == "custom"
    other = arm_of(config(rule="srt", guard=GuardConfig().set(W=3)))
    assert other.title == title("srt+custom") == "SRT + custom guard"
