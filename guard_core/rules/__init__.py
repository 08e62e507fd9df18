"""Label-free rules of the field behind one interface: observations to rewards, label and weight."""

from collections.abc import Mapping
from typing import Any

from guard_core.config import ConfigError
from guard_core.rules.confidence import (
    SCRL,
    Dare,
    Intuitor,
    OneShotEM,
    Rent,
    Scope,
    SCRLContinuous,
)
from guard_core.rules.evidence import T3RL, CoRewarding1, CoRewarding2, CoVerRL, EvolRL, SelfHarmony
from guard_core.rules.rule import (
    Need,
    Observations,
    Pays,
    Rule,
    answer_streams,
    response_streams,
    rule_advantages,
    weighed,
)
from guard_core.rules.votes import (
    DDRL,
    EMPO,
    MMUPT,
    SNR,
    SRT,
    TTCS,
    TTRL,
    DiSCTT,
    FormatReward,
    MajAtN,
    RandomReward,
    SRTSoft,
)  # fmt: skip

__all__ = [
    "RULES",
    "Need",
    "Observations",
    "Pays",
    "Rule",
    "answer_streams",
    "make_rule",
    "response_streams",
    "rule_advantages",
    "weighed",
]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        TTRL, SRT, SRTSoft, TTCS, MMUPT, EMPO, SNR, DDRL, SCRL, SCRLContinuous, DiSCTT, EvolRL,
        Scope, T3RL, CoVerRL, SelfHarmony, CoRewarding1, CoRewarding2, Intuitor, Rent, Dare,
        OneShotEM, RandomReward, FormatReward, MajAtN,
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
