"""Self-Harmony: the answer that is stable under a rewording of the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.rules.rule import Need, Rule
from guard_core.rules.seen import Seen, count_second


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfHarmony(Rule):
    """TTRL with y = argmax of the harmonic mean of an answer's shares on question and rewording.

    Wang et al., "Self-Harmony: Learning to Harmonize Self-Supervision and Self-Play in Test-Time
    Reinforcement Learning"; only the abstract was read. Shares are of all responses, unparseable
    ones included. An answer that one of the two vote sets lacks scores 0; where the sets share no
    answer, the label stays what it was.
    """

    name: ClassVar[str] = "self_harmony"
    title: ClassVar[str] = "Self-Harmony"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PARAPHRASE})

    def scores(self, seen: Seen) -> Array:
        """See `Rule.scores`."""
        xp = namespace(seen.votes.counts)
        first = seen.shares
        second = count_second(seen) / max(1, seen.of("second").shape[-1])
        total = first + second
        return 2 * first * second / xp.where(total > 0, total, xp.ones_like(total))
