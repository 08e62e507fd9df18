"""Under which guard and labels a rule can stand, the same in both worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from guard_core.config import GuardConfig
from guard_core.rules.rule import Rule
from lab.errors import UserError

BASELINE = "ttrl"
"""Name of the rule, and of the arm, that others are compared with."""


DEFAULT_GUARD = GuardConfig.paper()
"""Stands for the guard of settings that do not mention one. It is recognised by identity, since an
equal guard that was given is kept under every rule."""


def guard_of(guard: GuardConfig, rule: type[Rule] | None) -> GuardConfig:
    """Return the guard that settings mean.

    Args:
        guard: of the settings; `DEFAULT_GUARD` where they do not mention it: the paper's guard for
            plain TTRL, that of the rule alone for any other rule.
        rule: of the settings; None where they name none that exists, which other checks refuse.
    """
    if guard is not DEFAULT_GUARD:
        return guard
    # A copy: settings that were made have a guard of their own, whatever rule they get later.
    return replace(guard) if rule is None or rule.name == BASELINE else guard_alone(rule)


def guard_alone(rule: type[Rule]) -> GuardConfig:
    """Return the settings under which a rule stands alone: it labels, and nothing is held back."""
    # A rule that trains nothing is read by the votes of all its visits.
    trains = rule.loss != "none"
    return GuardConfig.off() if trains else replace(GuardConfig.off(), label_from="memory")


def misfit(
    rule: Rule | type[Rule], guard: GuardConfig, labels: Literal["votes", "truth"]
) -> str | None:
    """Reason why a rule cannot be combined with a guard or labels; None if it can.

    The reason continues a sentence that begins with the rule's name.

    Args:
        rule: the rule or its class.
        guard: settings of the guard, and where it takes labels from.
        labels: what is trained on: the guard's labels or the true answers.
    """
    if not rule.has_label and (guard.acts or guard.label_from != "current"):
        return "has no label that a guard or memory could work on"
    if rule.loss == "none" and guard.acts:
        return "trains nothing that a guard could hold back"
    if guard.label_from == "frozen" and not rule.follows_label:
        return "makes new labels on every visit, so that none can be frozen"
    if labels == "truth" and not (rule.has_label and rule.follows_label):
        return "does not use a given label, so that true ones change nothing"
    return None


def check_fit(rule: Rule, guard: GuardConfig, labels: Literal["votes", "truth"]) -> None:
    """Refuse settings that a rule cannot stand under.

    Raises:
        UserError: naming what is wrong with `misfit`'s words.
    """
    reason = misfit(rule, guard, labels)
    if reason is None:
        return
    remedy = f"take --arm {rule.name}, or --profile off with guard.label_from = current"
    if labels == "truth" and misfit(rule, guard, "votes") is None:
        remedy = "take labels = votes"
    raise UserError(f"rule = {rule.name}: {reason}; {remedy}")
