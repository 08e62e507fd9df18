"""All rules by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_core.checks import ConfigError
from guard_core.rules.confidence import Intuitor, Rent
from guard_core.rules.controls import FormatReward, MajAtN, OneShotEM, RandomReward
from guard_core.rules.coverrl import CoVerRL
from guard_core.rules.disctt import DiSCTT
from guard_core.rules.empo import EMPO
from guard_core.rules.evol_rl import EvolRL
from guard_core.rules.rule import Rule
from guard_core.rules.scope import Scope
from guard_core.rules.scrl import SCRL, SCRLContinuous
from guard_core.rules.second_votes import CoRewarding1, CoRewarding2, SelfHarmony
from guard_core.rules.srt import SRT, SRTSoft
from guard_core.rules.t3rl import T3RL
from guard_core.rules.ttcs import TTCS
from guard_core.rules.ttrl import MMUPT, TTRL

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        TTRL, SRT, SRTSoft, TTCS, MMUPT, EMPO, SCRL, SCRLContinuous, DiSCTT, EvolRL, Scope, T3RL,
        CoVerRL, SelfHarmony, CoRewarding1, CoRewarding2, Intuitor, Rent, OneShotEM, RandomReward,
        FormatReward, MajAtN,
    )
}  # fmt: skip
"""Name to class; add to it to make a rule of your own known to both worlds."""


def make_rule(name: str, settings: Mapping[str, Any] | None = None) -> Rule:
    """A rule by name.

    Args:
        name: key of `RULES`.
        settings: of the rule; missing ones take their defaults.

    Raises:
        ConfigError: there is no rule of that name, or a setting is wrong.
    """
    if name not in RULES:
        raise ConfigError(f"rule = {name!r}: unknown, use one of {', '.join(RULES)}")
    return RULES[name].from_dict({} if settings is None else settings)
