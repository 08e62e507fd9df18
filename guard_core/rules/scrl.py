"""SCRL: positive labels only where the vote is clear, negative labels for rare, unsure answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import device

from guard_core.arrays import Array, namespace, sum_by_id
from guard_core.checks import NotNegative, Share
from guard_core.rules.observations import Observations, at_label, filled
from guard_core.rules.rule import Need, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SCRL(Rule):
    """Three kinds of answers: the label, negative ones, and the rest.

    Read in the authors' code (arXiv 2603.19880, `scrl_utils.py`, numbers from `run_example.sh`; 32
    votes, 16 trained, temperature .6). Shares are of all V votes. The label is positive if its
    share is at least `t_pos` and leads every other answer's by more than `t_margin`, or there is no
    other. Any answer that is not positive is negative if its share is below `t_low` and the mean
    entropy H_a of its responses is at least the mean H of all V. Binary rewards: +1 positive, -1
    negative, 0 else. Unparseable responses get -1. An entropy that is not finite is read as the
    mean of the problem's others.
    """

    name: ClassVar[str] = "scrl"
    title: ClassVar[str] = "SCRL (binary)"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    pays: ClassVar[Pays] = "answer"

    t_pos: Share = 0.375
    """Least share of a positive label."""
    t_margin: Share = 0.125
    """Lead over the second answer that a positive label needs."""
    t_low: Share = 0.125
    """Share below which an answer may be negative."""

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        positive, negative, excess = self._kinds(obs, label)
        return _with_unparseable(self._rewards(obs, positive, negative, excess))

    def _rewards(self, obs: Observations, positive: Array, negative: Array, excess: Array) -> Array:
        xp = namespace(positive)
        return xp.astype(positive, obs.real) - xp.astype(negative, obs.real)

    def _kinds(self, obs: Observations, label: Array) -> tuple[Array, Array, Array]:
        """(..., P, A) positive and negative answers, and H_a - H."""
        xp = namespace(label)
        share = obs.shares
        is_label = obs.columns[:-1] == label[..., None]
        first = at_label(share, label)
        second = xp.max(xp.where(is_label, xp.zeros_like(share), share), axis=-1)
        leads = (first - second > self.t_margin) | (second == 0)
        clear = (first >= self.t_pos) & (first > 0) & leads
        positive = is_label & clear[..., None]
        excess = _excess_entropy(obs)
        negative = ~positive & (share > 0) & (share < self.t_low) & (excess >= 0)
        return positive, negative, excess


@dataclass(frozen=True, slots=True, kw_only=True)
class SCRLContinuous(SCRL):
    """The continuous rewards of SCRL, with share p and entropies H_a and H.

    Positive `p - l (H_a - H)`, negative `-(t_low - p) - l (H_a - H)`, else `-l (H_a - H)`;
    unparseable -1. Read in the authors' code, which says `p - t_pos` in its description of the
    positive reward and pays `p`: `positive_from` offers both.
    """

    name: ClassVar[str] = "scrl_continuous"
    title: ClassVar[str] = "SCRL (continuous)"

    entropy_weight: NotNegative = 0.1
    """l."""
    positive_from: Literal["zero", "t_pos"] = "zero"
    """Baseline that the share of a positive answer is counted from."""

    def _rewards(self, obs: Observations, positive: Array, negative: Array, excess: Array) -> Array:
        xp = namespace(positive)
        share = obs.shares
        none = xp.zeros_like(share)
        start = self.t_pos if self.positive_from == "t_pos" else 0.0
        gain = xp.where(positive, share - start, none)
        loss = xp.where(negative, self.t_low - share, none)
        return gain - loss - self.entropy_weight * excess


def _excess_entropy(obs: Observations) -> Array:
    """(..., P, A) mean entropy of an answer's responses minus that of all V, 0 without any."""
    answers, entropy = obs.of("answers"), filled(obs.of("entropy"))
    xp = namespace(answers)
    entropy = xp.astype(entropy, obs.real)
    mean = xp.mean(entropy, axis=-1, keepdims=True)
    counts = obs.votes.counts
    total = sum_by_id(answers, counts.shape[-1], entropy - mean)
    excess = total / xp.clip(xp.astype(counts, obs.real), min=1.0)
    # Equal entropies may differ by rounding, which must not decide on which side of 0 they lie.
    return xp.where(xp.abs(excess) > 1e-6, excess, xp.zeros_like(excess))


def _with_unparseable(rewards: Array) -> Array:
    xp = namespace(rewards)
    shape = (*rewards.shape[:-1], 1)
    none = xp.full(shape, -1.0, dtype=rewards.dtype, device=device(rewards))
    return xp.concat([rewards, none], axis=-1)
