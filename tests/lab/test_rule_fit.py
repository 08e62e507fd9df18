"""Combinations of a rule with other settings, and the messages for those that are refused."""

from dataclasses import replace

import pytest

from guard_core import GuardConfig
from guard_core.rules import RULES, make_rule
from lab.arms import check_fit, misfit
from lab.errors import UserError

OFF = GuardConfig.off()
ACTING = [replace(OFF, **{name: True}) for name in ("frs", "mps", "rcsu")]
ACTING += [replace(OFF, margin_power=1), replace(OFF, min_share=0.5)]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_stands_alone(name):
    assert misfit(RULES[name], OFF, "votes") is None
    check_fit(make_rule(name), OFF, "votes")


@pytest.mark.parametrize("name", RULES)
def test_no_part_of_the_guard_goes_without_a_label_or_training(name):
    rule = RULES[name]
    for guard in ACTING:
        allowed = rule.has_label and rule.loss != "none"
        assert (misfit(rule, guard, "votes") is None) == allowed


@pytest.mark.parametrize("name", RULES)
def test_memory_frozen_and_true_labels_need_what_they_work_on(name):
    rule = RULES[name]
    found = [misfit(rule, replace(OFF, label_from=f), "votes") for f in ("memory", "frozen")]
    assert (found[0] is None) == rule.has_label
    assert (found[1] is None) == (rule.has_label and rule.follows_label)
    assert (misfit(rule, OFF, "truth") is None) == (rule.has_label and rule.follows_label)


@pytest.mark.parametrize(
    ("name", "guard", "labels", "words"),
    [
        ("rent", GuardConfig.paper(), "votes", "has no label .*; take --arm rent"),
        (
            "scope",
            replace(OFF, label_from="frozen"),
            "votes",
            "new labels.*--profile off",
        ),
        ("scope", OFF, "truth", "does not use a given label.*; take labels = votes"),
        ("maj_at_n", GuardConfig.paper(), "votes", "trains nothing"),
        ("rent", GuardConfig.paper(), "truth", "has no label .*; take --arm rent"),
    ],
)
def test_what_is_said(name, guard, labels, words):
    with pytest.raises(UserError, match=f"^rule = {name}: .*{words}") as error:
        check_fit(make_rule(name), guard, labels)
    assert "\n" not in str(error.value)
