"""TTRL: reward the majority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.rules.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TTRL(Rule):
    """`r_i = [a_i = y]`, y the answer with most votes.

    Zuo et al., "TTRL: Test-Time Reinforcement Learning"; read in the authors' code (64 votes, 32 of
    them trained). Without a parseable response there is no label and no reward.
    """

    name: ClassVar[str] = "ttrl"
    title: ClassVar[str] = "TTRL"
