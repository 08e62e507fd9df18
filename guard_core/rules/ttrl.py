"""TTRL and MM-UPT: reward the majority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TTRL(Rule):
    """`r_i = [a_i = y]`, y the answer with most votes.

    Zuo et al., "TTRL: Test-Time Reinforcement Learning"; read in the authors' code (64 votes, 32 of
    them trained). Without a parseable response there is no label and no reward.
    """

    name: ClassVar[str] = "ttrl"
    title: ClassVar[str] = "TTRL"


@dataclass(frozen=True, slots=True, kw_only=True)
class MMUPT(Rule):
    """`r_i = [a_i = y]`, where the unparseable responses are one more candidate for y.

    Wei et al., "Unsupervised Post-Training for Multi-Modal LLM Reasoning via GRPO"; read in the
    authors' code (`verl/workers/reward/function.py`, n = 10). Where the unparseable responses
    outnumber every answer of the visit, they are rewarded and nothing else is. A tie goes to the
    answer; in that code to whichever came first.
    """

    name: ClassVar[str] = "mm_upt"
    title: ClassVar[str] = "MM-UPT"
    pays: ClassVar[Pays] = "answer"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        xp = namespace(label)
        none = obs.votes.n_votes - obs.n_parsed
        wins = none > xp.max(obs.votes.counts, axis=-1)
        rewarded = xp.where(wins, xp.full_like(label, -2), label)
        return xp.astype(obs.columns == rewarded[..., None], obs.real)
