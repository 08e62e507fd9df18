"""A refusal names the rule, the setting or the observation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
from rule_sights import labels, sight

from guard_core import ConfigError
from guard_core.rules import RULES, Rule, make_rule

SHOWN = sight(np.random.default_rng(0))


def test_an_unknown_rule_lists_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        make_rule("majority")
    message = str(caught.value)
    assert message.startswith("rule = 'majority': unknown, use one of ttrl, srt,")
    assert all(name in message for name in RULES)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("srt", {"treshold": 0.5}, "rule srt: no setting 'treshold'; it has threshold, keep"),
        ("ttrl", {"keep": 0.5}, "rule ttrl: no setting 'keep'; it has none"),
        ("srt", [("keep", 0.5)], "rule srt: settings must be a table, got [('keep', 0.5)]"),
        ("srt", {"threshold": float("nan")}, "srt.threshold = nan: must lie in [0, 1]"),
        ("ttcs", {"least": 0.9}, "ttcs.least = 0.9: must be at most most = 0.75"),
        ("scope", {"confidence": "raw"}, "scope.confidence = 'raw': must be one of logprob, rel"),
        ("t3rl", {"verified_weight": -5.0}, "t3rl.verified_weight = -5.0: must be at least 0"),
        ("coverrl", {"regenerations": -1}, "coverrl.regenerations = -1: must be at least 0"),
        ("rent", {"unparseable": 1.0}, "rent.unparseable = 1.0: must be at most 0"),
    ],
)
def test_a_wrong_setting_names_its_rule(name, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_rule(name, settings)


def test_whole_numbers_do_for_settings_that_are_floats():
    assert make_rule("srt", {"threshold": 1}).to_dict() == {"threshold": 1, "keep": 1.0}
    assert make_rule("srt", None) == make_rule("srt", {}) == make_rule("srt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Rule):
    """A rule of one's own with kinds of settings that no built-in one has."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"

    words: tuple[str, ...] = ("a",)
    limit: float | None = None
    size: Literal[1, 2] = 1


class Nameless(Rule):
    """Somebody forgot the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread(Rule):
    """Its setting has a type that exists for type checkers alone."""

    name: ClassVar[str] = "unread"

    depth: Depth = 1  # type: ignore[name-defined]  # noqa: F821


def test_types_that_cannot_be_read():
    with pytest.raises(ConfigError, match=r"rule unread: .* \(name 'Depth' is not defined\)"):
        Unread()


def test_rules_of_ones_own():
    assert Named(limit=2.0, words=("b", "c")).to_dict()["words"] == ("b", "c")
    with pytest.raises(ConfigError, match=r"mine.size = 3: must be one of 1, 2"):
        Named(size=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rule Nameless: no setting 'k'; it has none"):
        Nameless.from_dict({"k": 1})
    with pytest.raises(NotImplementedError, match="mine asks no verifier"):
        Named().questions(SHOWN.seen(), labels(0))


@pytest.mark.parametrize("name", [name for name in RULES if RULES[name].needs])
def test_a_missing_observation_is_named(name):
    rule = make_rule(name)
    for need in rule.needs:
        missing = {"paraphrase": "second", "teacher": "second"}.get(need, str(need))
        seen = replace(SHOWN, **{missing: None}).seen()
        with pytest.raises(ValueError, match=f"^{missing}: the rule needs it and it was not obs"):
            rule.scores(seen)
            rule.pay(seen, labels(0, 0, 0, 0))
            rule.weigh(seen, labels(0, 0, 0, 0))


@pytest.mark.parametrize("name", ["scope", "random"])
def test_too_few_draws(name):
    rule = make_rule(name)
    n = rule.n_draws(8, 5)
    seen = replace(SHOWN, draws=SHOWN.draws[:, : n - 1]).seen()
    with pytest.raises(ValueError, match=f"draws: {n - 1} numbers, the rule takes {n}"):
        rule.pay(seen, labels(0, 0, 0, 0))


@pytest.mark.parametrize(
    ("name", "shape", "needs"),
    [
        ("answers", (4, 7), "(4, 8)"),
        ("certainty", (3, 8), "(4, 8)"),
        ("tool", (1, 8), "(4, 8)"),
        ("similarity", (4, 8, 8), "(4, 5, 5)"),
        ("draws", (5, 8), "(4, any)"),
        ("verdicts", (2, 4, 8), "(4, any)"),
    ],
)
def test_wrong_shapes(name, shape, needs):
    seen = SHOWN.seen()
    with pytest.raises(ValueError, match=re.escape(f"{name}: shape {shape}, needs {needs}")):
        replace(seen, **{name: np.zeros(shape)})
