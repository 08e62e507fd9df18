"""SRT: majority rewards where the vote is sure enough, hard or soft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import device

from guard_core.arrays import Array, floor_share, namespace
from guard_core.checks import PositiveShare, Share
from guard_core.rules.observations import Observations, at_label
from guard_core.rules.rule import Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SRT(Rule):
    """TTRL on the problems whose label has a large enough share of the parseable votes.

    Shafayat et al., "Can Large Reasoning Models Self-Train?"; read in the authors' code
    (`verl/workers/reward_manager/self_learning.py`), where the threshold is 0 and all problems are
    kept. A problem below the threshold, or not among those of highest share in its batch, leaves
    the batch; equal shares are kept in batch order. In that code a problem below the threshold
    stays with no reward and no KL term, which differs in the loss's denominator alone.
    """

    name: ClassVar[str] = "srt"
    title: ClassVar[str] = "SRT"

    threshold: Share = 0.0
    """Least share of the parseable votes."""
    keep: PositiveShare = 1.0
    """Share of the batch's problems that are kept, rounded down, at least one."""

    def weigh(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.weigh`."""
        xp = namespace(label)
        share = _share(obs, at_label(obs.votes.counts, label))
        kept = share >= self.threshold
        n_problems = label.shape[-1]
        n_kept = max(1, floor_share(self.keep, n_problems))
        if n_kept < n_problems:
            order = xp.argsort(share, axis=-1, descending=True, stable=True)
            rank = xp.argsort(order, axis=-1, stable=True)
            kept = kept & (rank < n_kept)
        return xp.astype(kept, obs.real)


@dataclass(frozen=True, slots=True, kw_only=True)
class SRTSoft(Rule):
    """`r_i` is the share of the parseable votes that response i's answer got, 0 if unparseable.

    The soft form of SRT, read in the same code; there is no threshold and no problem is left out.
    """

    name: ClassVar[str] = "srt_soft"
    title: ClassVar[str] = "SRT (soft)"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "answer"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        counts = obs.votes.counts
        xp = namespace(counts)
        share = _share(obs, xp.astype(counts, obs.real), obs.n_parsed[..., None])
        none = xp.zeros((*counts.shape[:-1], 1), dtype=obs.real, device=device(counts))
        return xp.concat([share, none], axis=-1)


def _share(obs: Observations, votes: Array, n_parsed: Array | None = None) -> Array:
    """Share of the parseable votes, 0 where there is none."""
    xp = namespace(votes)
    total = obs.n_parsed if n_parsed is None else n_parsed
    return xp.astype(votes, obs.real) / xp.clip(xp.astype(total, obs.real), min=1.0)
