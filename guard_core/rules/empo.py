"""EMPO: reward an answer by the share of responses that mean it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import device

from guard_core.arrays import Array, divide, namespace
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class EMPO(Rule):
    """`r_i` is the share of response i's class among all V, if the class entropy is below ln V.

    Zhang et al., "Right Question is Already Half the Answer: Fully Unsupervised LLM Reasoning
    Incentivization"; read in the authors' code (n = 7). Here classes are answers, and every
    unparseable response is a class of its own. The entropy is ln V where no two responses agree,
    and then all get 0.

    The authors' versions differ in what an unparseable response gets: nothing (`zero`), or the 1/V
    of its class, with no bound on the entropy (`alone`, their verl recipe). An older one pays the
    logarithm of the share.
    """

    name: ClassVar[str] = "empo"
    title: ClassVar[str] = "EMPO"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "answer"

    unparseable: Literal["zero", "alone"] = "zero"
    """Reward of an unparseable response."""

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        share = obs.shares
        xp = namespace(share)
        none = xp.zeros((*share.shape[:-1], 1), dtype=obs.real, device=device(share))
        if self.unparseable == "alone":
            return xp.concat([share, divide(none + 1, obs.votes.n_votes)], axis=-1)
        # The entropy of V classes of one response each is ln V; any pair makes it smaller.
        agrees = xp.any(obs.votes.counts > 1, axis=-1, keepdims=True)
        return xp.concat([xp.where(agrees, share, xp.zeros_like(share)), none], axis=-1)
