"""T3RL: votes that a tool confirmed weigh more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace, sum_by_id
from guard_core.checks import NotNegative
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Need, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class T3RL(Rule):
    """TTRL with y = argmax over a of sum_i (`verified_weight` if verified_i else 1) [a_i = a].

    Liao et al., "Tool Verification for Test-Time Reinforcement Learning". Only the abstract and a
    summary were read: the weight of 5 and what a tool checks are from there, no code was seen.
    """

    name: ClassVar[str] = "t3rl"
    title: ClassVar[str] = "T3RL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TOOL})

    verified_weight: NotNegative = 5.0
    """Votes that a confirmed response counts for."""

    def scores(self, obs: Observations) -> Array:
        """Implement `Rule.scores`."""
        answers, tool = obs.of("answers"), obs.of("tool")
        xp = namespace(tool)
        weight = 1.0 + (self.verified_weight - 1.0) * xp.astype(tool, obs.real)
        return sum_by_id(answers, obs.votes.counts.shape[-1], weight)
