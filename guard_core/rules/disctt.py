"""DiSCTT: supervise where the vote agrees, explore where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import device

from guard_core.arrays import Array, divide, namespace
from guard_core.checks import NotNegative, Share
from guard_core.rules.observations import Observations, at_label
from guard_core.rules.rule import Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class DiSCTT(Rule):
    """Problems of high agreement are trained on their majority, the others by rewarded exploration.

    Moradi and Mudur, "DiSCTT: Consensus-Guided Self-Curriculum for Efficient Test-Time Adaptation
    in Reasoning". Only the abstract and a summary were read; the agreement of 7/8 is from there. At
    or above it the majority's responses get advantage 1 and all others 0, which at a probability
    ratio of 1 is the gradient of their log-likelihood (supervised fine-tuning on y). Below it the
    reward is a consensus-regularised diversity, of which no formula was seen; here it is
    `[a_i = y] + diversity * (1 - share(a_i))`, and 0 for unparseable responses.
    """

    name: ClassVar[str] = "disctt"
    title: ClassVar[str] = "DiSCTT"
    pays: ClassVar[Pays] = "answer"

    agreement: Share = 0.875
    """Share of the V votes from which a problem is supervised."""
    diversity: NotNegative = 0.5
    """Size of the diversity reward; not stated."""

    def is_direct(self, obs: Observations, label: Array) -> Array | None:
        """Implement `Rule.is_direct`."""
        xp = namespace(label)
        share = divide(xp.astype(at_label(obs.votes.counts, label), obs.real), obs.votes.n_votes)
        return (share >= self.agreement) & (label >= 0)

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        xp = namespace(label)
        match = xp.astype(obs.columns == label[..., None], obs.real)
        rare = self.diversity * (1 - obs.shares)
        none = xp.zeros((*rare.shape[:-1], 1), dtype=obs.real, device=device(rare))
        direct = self.is_direct(obs, label)
        assert direct is not None
        explored = match + xp.concat([rare, none], axis=-1)
        return xp.where(direct[..., None], match, explored)
