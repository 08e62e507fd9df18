"""MM-UPT: TTRL where "no answer" can win the vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.rules.rule import Pays, Rule
from guard_core.rules.seen import Seen


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

    def pay(self, seen: Seen, label: Array) -> Array:
        """See `Rule.pay`."""
        xp = namespace(label)
        none = seen.votes.n_votes - seen.n_parsed
        wins = none > xp.max(seen.votes.counts, axis=-1)
        paid = xp.where(wins, xp.full_like(label, -2), label)
        return xp.astype(seen.columns == paid[..., None], seen.real)
