"""Under which guard and labels a rule can stand, the same in both worlds."""

from __future__ import annotations

from typing import Literal

from guard_core import GuardConfig
from guard_core.rules import Rule
from lab.errors import UserError


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
    acts = guard.frs or guard.mps or guard.rcsu
    if not rule.has_label and (acts or guard.label_from != "current"):
        return "has no label that a guard or memory could work on"
    if rule.loss == "none" and acts:
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
