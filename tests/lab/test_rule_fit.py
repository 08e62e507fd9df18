"""Combinations of a rule with other settings, and the messages for those that are refused."""

from dataclasses import replace

import pytest

from guard_core import GuardConfig
from guard_core.rules import make_rule
from lab.base.arms import check_fit
from lab.base.errors import UserError

OFF = GuardConfig.off()


@pytest.mark.parametrize(
    ("name", "guard", "labels", "words"),
    [
        ("rent", GuardConfig.paper(), "votes", "has no label .*; take --arm rent"),
        ("scope", replace(OFF, label_from="frozen"), "votes", "new labels.*--profile off"),
        ("scope", OFF, "truth", "does not use a given label.*; take labels = votes"),
        ("maj_at_n", GuardConfig.paper(), "votes", "trains nothing"),
        ("rent", GuardConfig.paper(), "truth", "has no label .*; take --arm rent"),
    ],
)
def test_what_is_said(name, guard, labels, words):
    with pytest.raises(UserError, match=f"^rule = {name}: .*{words}") as error:
        check_fit(make_rule(name), guard, labels)
    assert "\n" not in str(error.value)
