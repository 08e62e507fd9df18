"""EVOL-RL: the majority selects, novelty varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import device

from guard_core.arrays import Array, namespace
from guard_core.rules.observations import Observations, masked_mean
from guard_core.rules.rule import Need, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolRL(Rule):
    """Majority responses earn .5 to 1, others -1 to -.5, the more the less they resemble others.

    Zhou et al., "Evolving Language Models without Labels: Majority Drives Selection, Novelty
    Promotes Variation"; read in the authors' code (`reward_manager/semantic_novelty.py`; 64 votes,
    32 trained, temperature 1, upper clip .28). With s the cosine similarity of two parseable
    responses, cut to [0, 1], novelty is `u_i = 1 - (mean of s_ij over the same side + max of s_ij
    over all others) / 2`, scaled to [0, 1] inside {majority} and {rest}; equal novelties scale
    to .5. Majority `.5 + .5 u`, rest `-1 + .5 u`; a lone majority response gets 1, a lone other
    -.5. An unparseable response gets -1 and is on no side. A similarity that is not finite is 0.

    That code calls a response invalid whose box holds no digit, embeds what follows the thinking,
    and gives -1 to a response that is the only valid one among several; here it is a lone one.
    """

    name: ClassVar[str] = "evol_rl"
    title: ClassVar[str] = "EVOL-RL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIMILARITY})
    pays: ClassVar[Pays] = "response"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        return self.rewards(obs, label, self._novelty(obs, *_sides(obs, label)))

    def rewards(self, obs: Observations, label: Array, novelty: Array) -> Array:
        """Return the rewards of responses of these novelties, (..., P, K) each."""
        wins, loses = _sides(obs, label)
        xp, parsed = namespace(novelty), wins | loses
        won = xp.where(_lone(wins), xp.ones_like(novelty), 0.5 + 0.5 * _scaled(novelty, wins))
        lost = -1 + 0.5 * _scaled(novelty, loses)
        lost = xp.where(_lone(loses), xp.full_like(lost, -0.5), lost)
        rewards = xp.where(wins, won, lost)
        return xp.where(parsed, rewards, xp.full_like(rewards, -1.0))

    @staticmethod
    def _novelty(obs: Observations, wins: Array, loses: Array) -> Array:
        """(..., P, K) how little a response resembles others."""
        similarity = obs.of("similarity")
        xp = namespace(similarity)
        known = xp.where(xp.isfinite(similarity), similarity, xp.zeros_like(similarity))
        known = xp.clip(xp.astype(known, obs.real), min=0.0, max=1.0)
        response = xp.arange(obs.votes.n_samples, device=device(known))
        parsed = wins | loses
        other = (response[:, None] != response) & parsed[..., None, :]
        same = wins[..., :, None] == wins[..., None, :]
        mean = masked_mean(known, same & other)
        # Similarities are at least 0, which is also the largest of none.
        most = xp.max(xp.where(other, known, xp.zeros_like(known)), axis=-1)
        return 1 - (mean + most) / 2


def _sides(obs: Observations, label: Array) -> tuple[Array, Array]:
    """(..., P, K) bool each: responses of the majority, and other parseable ones."""
    answers = obs.of("answers")[..., : obs.votes.n_samples]
    wins = (answers >= 0) & (answers == label[..., None])
    return wins, (answers >= 0) & ~wins


def _lone(side: Array) -> Array:
    """(..., P, 1) whether a side has one member."""
    xp = namespace(side)
    return xp.sum(xp.astype(side, xp.int64), axis=-1, keepdims=True) == 1


def _scaled(values: Array, side: Array) -> Array:
    """(..., P, K) novelties of a side scaled to [0, 1], .5 where all are equal.

    Novelties lie in [0, 1], so 2 and -1 stand outside of every side.
    """
    xp = namespace(values)
    low = xp.min(xp.where(side, values, xp.full_like(values, 2.0)), axis=-1, keepdims=True)
    high = xp.max(xp.where(side, values, xp.full_like(values, -1.0)), axis=-1, keepdims=True)
    width = high - low
    # Differences of rounding must not be blown up to the whole range.
    differ = width > 1e-6
    safe = xp.where(differ, width, xp.ones_like(width))
    return xp.where(differ & side, (values - low) / safe, xp.full_like(values, 0.5))
