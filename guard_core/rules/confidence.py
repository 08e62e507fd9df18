"""Intuitor and RENT: a response is as good as the model is sure of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from guard_core.arrays import Array, namespace
from guard_core.checks import Interval
from guard_core.rules.observations import Observations, filled
from guard_core.rules.rule import Need, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Intuitor(Rule):
    """`r_i` is the response's self-certainty: mean over its tokens of KL(uniform || model).

    Zhao et al., "Learning to Reason without External Rewards"; read in the authors' code as the
    mean of logsumexp(z) - mean(z), which is that divergence plus the constant ln(vocabulary);
    standardised rewards do not see the constant (n = 8, learning rate 3e-6, KL .005). A certainty
    that is not finite is read as the mean of the problem's others.
    """

    name: ClassVar[str] = "intuitor"
    title: ClassVar[str] = "Intuitor"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CERTAINTY})
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "response"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        certainty = obs.of("certainty")[..., : obs.votes.n_samples]
        return namespace(certainty).astype(filled(certainty), obs.real)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent(Rule):
    """`r_i` is minus the mean entropy of the response's tokens; unparseable responses get -7.

    Prabhudesai et al., "Maximizing Confidence Alone Improves Reasoning"; read in the authors' code
    (n = 5, learning rate 1e-6, KL .001). An entropy that is not finite is read as the mean of the
    problem's others.
    """

    name: ClassVar[str] = "rent"
    title: ClassVar[str] = "RENT"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "response"

    unparseable: Annotated[float, Interval("(-inf, 0]")] = -7.0
    """Reward of a response without a readable answer, in nats."""

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        K = obs.votes.n_samples
        entropy, answers = obs.of("entropy")[..., :K], obs.of("answers")[..., :K]
        xp = namespace(answers)
        reward = -xp.astype(filled(entropy), obs.real)
        return xp.where(answers >= 0, reward, xp.full_like(reward, self.unparseable))
