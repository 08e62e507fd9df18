"""Rules with a second vote set: on a rewording of the problem, or of a slower model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.rules.observations import Observations, count_second
from guard_core.rules.rule import Need, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding1(Rule):
    """TTRL with the label that wins the vote on a paraphrase of the problem.

    Zhang et al., "Co-rewarding: Stable Self-supervised RL for Eliciting Reasoning in LLMs", part I;
    read in the authors' code (`reward_manager/co_reward.py`, n = 8). There the responses to the
    paraphrase are trained as well, on the label of the original; the trainer does so, too.
    Where no response to the paraphrase can be parsed, that code rewards nobody; here the label
    stays what it was.
    """

    name: ClassVar[str] = "co_rewarding_1"
    title: ClassVar[str] = "Co-rewarding I"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PARAPHRASE})
    trains_second: ClassVar[bool] = True

    def scores(self, obs: Observations) -> Array:
        """Implement `Rule.scores`."""
        return count_second(obs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding2(Rule):
    """TTRL with the label that wins the vote of an exponential moving average of the model.

    Part II of the same paper, read in the authors' code (`reward_manager/co_rewarding_II.py`): the
    average's rate falls from .01 to 1e-5 along a cosine. Without a parseable vote as in part I.
    """

    name: ClassVar[str] = "co_rewarding_2"
    title: ClassVar[str] = "Co-rewarding II"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEACHER})

    def scores(self, obs: Observations) -> Array:
        """Implement `Rule.scores`."""
        return count_second(obs)


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

    def scores(self, obs: Observations) -> Array:
        """Implement `Rule.scores`."""
        xp = namespace(obs.votes.counts)
        first = obs.shares
        second = count_second(obs) / max(1, obs.of("second").shape[-1])
        total = first + second
        return 2 * first * second / xp.where(total > 0, total, xp.ones_like(total))
