"""Co-rewarding: labels from another view of the problem, or from a slower model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array
from guard_core.rules.rule import Need, Rule
from guard_core.rules.seen import Seen, count_second


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding1(Rule):
    """TTRL with the label that wins the vote on a paraphrase of the problem.

    Zhang et al., "Co-rewarding: Stable Self-supervised RL for Eliciting Reasoning in LLMs", part I;
    read in the authors' code (`reward_manager/co_reward.py`, n = 8). There the responses to the
    paraphrase are trained as well, on the label of the original; a world that trains both says so.
    Where no response to the paraphrase can be parsed, that code rewards nobody; here the label
    stays what it was.
    """

    name: ClassVar[str] = "co_rewarding_1"
    title: ClassVar[str] = "Co-rewarding I"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PARAPHRASE})

    def scores(self, seen: Seen) -> Array:
        """See `Rule.scores`."""
        return count_second(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding2(Rule):
    """TTRL with the label that wins the vote of an exponential moving average of the model.

    Part II of the same paper, read in the authors' code (`reward_manager/co_rewarding_II.py`): the
    average's rate falls from .01 to 1e-5 along a cosine. Without a parseable vote as in part I.
    """

    name: ClassVar[str] = "co_rewarding_2"
    title: ClassVar[str] = "Co-rewarding II"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEACHER})

    def scores(self, seen: Seen) -> Array:
        """See `Rule.scores`."""
        return count_second(seen)
