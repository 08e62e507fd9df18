"""Label-free rules of the field behind one interface: observations to rewards, label and weight."""

from collections.abc import Mapping
from typing import Any

from guard_core.config import ConfigError
from guard_core.rules import confidence, evidence, votes
from guard_core.rules.rule import (
    Need,
    Observations,
    Rule,
    per_response,
    response_streams,
    rule_advantages,
    scored,
    weighed,
)

__all__ = [
    "RULES",
    "Need",
    "Observations",
    "Rule",
    "make_rule",
    "per_response",
    "response_streams",
    "rule_advantages",
    "scored",
    "weighed",
]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        votes.TTRL, votes.SRT, votes.SRTSoft, votes.TTCS, votes.MMUPT, votes.EMPO, votes.SNR,
        votes.DDRL, confidence.SCRL, confidence.SCRLContinuous, votes.DiSCTT, evidence.EvolRL,
        confidence.Scope, evidence.T3RL, evidence.CoVerRL, evidence.SelfHarmony,
        evidence.CoRewarding1, evidence.CoRewarding2, confidence.Intuitor, confidence.Rent,
        confidence.Dare, confidence.OneShotEM, votes.RandomReward, votes.FormatReward,
        votes.MajAtN,
    )
}  # fmt: skip
"""Name to class; add to it to make a rule of your own known to both worlds."""


def make_rule(name: str, settings: Mapping[str, Any] | None = None) -> Rule:
    """A rule by its name in `RULES`.

    Raises:
        ConfigError: there is no rule of that name, or a setting is wrong.
    """
    if name not in RULES:
        raise ConfigError(f"rule = {name!r}: unknown, use one of {', '.join(RULES)}")
    return RULES[name].from_dict({} if settings is None else settings)
