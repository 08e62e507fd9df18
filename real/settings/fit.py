"""Which rules a run can have, told in one line when settings are made. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guard_core import ConfigError
from guard_core.rules import Need, Rule, make_rule
from lab.errors import UserError
from lab.rule_fit import check_fit

if TYPE_CHECKING:
    from real.settings.config import TrainConfig

PLAIN = "ttrl"
"""The rule that the trainer pays without this package."""


def rule_of(config: TrainConfig) -> Rule | None:
    """The run's rule; None for plain TTRL, which needs none of this."""
    return None if config.rule == PLAIN else make_rule(config.rule, config.rule_options)


def needs_stats(rule: Rule | None) -> bool:
    """Whether the rule reads token entropies or certainties, which engines give while sampling."""
    return rule is not None and bool(rule.needs & {Need.ENTROPY, Need.CERTAINTY})


def check_rule(config: TrainConfig) -> None:
    """Refuse a rule that the other settings contradict.

    Raises:
        UserError: the rule or one of its settings is unknown, or it cannot go with the guard, the
            labels or the loss.
    """
    try:
        rule = make_rule(config.rule, config.rule_options)
    except ConfigError as error:
        raise UserError(str(error)) from error
    check_fit(rule, config.guard, config.labels)
    if rule.loss == "entropy":
        for name in ("drop_uniform", "kl_coef", "importance_cap"):
            if getattr(config, name):
                raise UserError(
                    f"{name} = {getattr(config, name)}: rule {rule.name} has neither rewards nor "
                    "ratios; leave it out"
                )
    if Need.VERDICTS in rule.needs:
        can_verify(config)


def can_verify(config: TrainConfig) -> None:
    """Refuse a run whose model cannot judge responses.

    Raises:
        UserError: the problems are those of the tiny task, and its model was not taught it.
    """
    if config.is_tiny and not config.tiny_verifies:
        raise UserError(
            f"rule = {config.rule!r}: the tiny task's model cannot judge a response; take the one "
            "that was taught it with --tiny-verifies, or a language model that follows "
            "instructions with --model and --problems"
        )
