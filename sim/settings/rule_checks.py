"""Which rules a simulation can run, and beside which other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guard_core.rules import make_rule
from lab.errors import UserError
from lab.rule_fit import check_fit

if TYPE_CHECKING:
    from sim.settings.config import SimConfig

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
    if config.update == "expected":
        raise UserError(
            f"update = expected: only rule = ttrl has it, and rule = {rule.name}; use sampled"
        )
    check_fit(rule, config.guard, config.labels)


def plain_rule(config: SimConfig) -> bool:
    """The run needs none of the rules' machinery."""
    return config.rule == PLAIN_RULE


def _check_confidence(config: SimConfig) -> None:
    signal = config.signal if config.confidence_signal is None else config.confidence_signal
    total = signal**2 + config.confidence_share**2
    if total > 1:
        raise UserError(
            f"confidence_share = {config.confidence_share}: its square and that of the signal "
            f"({signal:g}) sum to {total:g}, must be at most 1"
        )
