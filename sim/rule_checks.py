"""Which rules a simulation can run, and beside which other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guard_core.rules import RULES, Rule, make_rule
from lab.errors import UserError

if TYPE_CHECKING:
    from sim.config import SimConfig

PLAIN_RULE = "ttrl"
"""Computed by the engines themselves, without any of the observations."""


def check_rule(config: SimConfig) -> None:
    """Check the rule's name and settings, and what it cannot be combined with.

    Raises:
        UserError: the settings contradict each other.
        ConfigError: there is no such rule, or one of its own settings is wrong.
    """
    rule = make_rule(config.rule, config.rule_options)
    _check_confidence(config)
    if rule.name == PLAIN_RULE:
        return
    if config.engine == "torch":
        raise UserError(
            f"rule = {rule.name}: engine = torch runs rule = ttrl only; use engine = compiled"
        )
    if config.update == "expected":
        raise UserError(
            f"update = expected: only rule = ttrl has it, and rule = {rule.name}; use sampled"
        )
    _check_label(config, rule)


def plain_rule(config: SimConfig) -> bool:
    """The run needs none of the rules' machinery."""
    return config.rule == PLAIN_RULE


def _check_label(config: SimConfig, rule: Rule) -> None:
    guard = config.guard
    if not rule.has_label:
        if guard.frs or guard.mps or guard.rcsu:
            raise UserError(
                f"rule = {rule.name}: has no label for the guard to work on; turn it off "
                f"(--profile off, or --arm {rule.name})"
            )
        if guard.label_from != "current":
            raise UserError(
                f"guard.label_from = {guard.label_from}: rule = {rule.name} has no label; "
                f"use current"
            )
    # Frozen or true labels need a rule whose rewards change with the label that it is given.
    if guard.label_from == "frozen" and not rule.follows_label:
        raise UserError(
            f"guard.label_from = frozen: rule = {rule.name} makes its labels anew on every visit; "
            f"use current or memory"
        )
    if config.labels == "truth" and not (rule.has_label and rule.follows_label):
        raise UserError(f"labels = truth: rule = {rule.name} is not paid by one label; use votes")


def _check_confidence(config: SimConfig) -> None:
    signal = config.signal if config.confidence_signal is None else config.confidence_signal
    total = signal**2 + config.confidence_share**2
    if total > 1:
        raise UserError(
            f"confidence_share = {config.confidence_share}: its square and that of the signal "
            f"({signal:g}) sum to {total:g}, must be at most 1"
        )


def can_guard(rule: str, other: str) -> bool:
    """Whether the rule has a label that a guard or label source, such as `frozen`, can work on."""
    kind = RULES[rule]
    return kind.has_label and kind.loss == "rewards" and (other != "frozen" or kind.follows_label)
