"""Label of a visit: the answer with most votes, ties broken by supplied draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from array_api_compat import device

from guard_core.arrays import Array, counter_dtype, namespace
from guard_core.config import GuardConfig
from guard_core.votes import Votes


class Label(NamedTuple):
    """The pseudo-label of every problem in the batch."""

    label: Array
    """(..., P) answer id, -1 while no response could ever be parsed."""
    tied: Array
    """(..., P) bool; several answers shared the first place."""
    is_label: Array
    """(..., P, A) bool; the label's place."""
    got: Array
    """(..., P) votes of this visit that the label got."""


def choose_label(votes: Votes, scores: Array, old: Array, tie: Array, config: GuardConfig) -> Label:
    """Pick each problem's label by largest score (docs/method.md, section 2, paper equation 1).

    Args:
        votes: this visit's votes.
        scores: (..., P, A); the votes' own `counts`, a rule's scores, or sums over visits.
        old: (..., P) label before this visit, -1 for none.
        tie: (..., P) uniform draws.
        config: `tie_break`, `label_from` and `hysteresis` are read.
    """
    xp = namespace(scores)
    ids = xp.arange(scores.shape[-1], dtype=old.dtype, device=device(old))
    top = xp.max(scores, axis=-1)
    tied_PA = scores == top[..., None]
    # Running count of tied answers in id order; its last entry is how many there are.
    small = counter_dtype(xp, scores.shape[-1])
    order = xp.cumulative_sum(xp.astype(tied_PA, small), axis=-1, dtype=small)
    n_tied = order[..., -1]
    before = order <= _tie_rank(xp, tie, n_tied, config)[..., None]
    winner = xp.astype(xp.sum(xp.astype(before, small), axis=-1, dtype=small), old.dtype)
    if config.tie_break == "incumbent":
        stays = xp.any(tied_PA & (ids == old[..., None]), axis=-1)
        winner = xp.where(stays, old, winner)
    if config.hysteresis > 0:
        winner = _kept(xp, scores, top, old, winner, config.hysteresis)
    voted = _voted(xp, votes, top, config)
    label = xp.where(voted, winner, old)
    if config.label_from == "frozen":
        label = xp.where(old >= 0, old, label)
    is_label = ids == label[..., None]
    # The winner of the votes themselves has the most of them: nothing needs to be looked up.
    current = config.label_from == "current" and scores is votes.counts
    current &= config.hysteresis == 0
    got = top if current else _of_label(xp, votes.counts, label)
    return Label(label, voted & (n_tied > 1), is_label, got)


def choose_majority(votes: Votes, old: Array, tie: Array, config: GuardConfig) -> Label:
    """Pick the answer with most of this visit's votes, whatever the guard's labels are taken from.

    Args:
        votes: this visit's votes.
        old: (..., P) label where nobody voted, and of equals the one that
            `tie_break = "incumbent"` keeps; -1 for none.
        tie: (..., P) uniform draws.
        config: `tie_break` is read.
    """
    return choose_label(
        votes, votes.counts, old, tie, replace(config, label_from="current", hysteresis=0.0)
    )


def _kept(xp: Any, scores: Array, top: Array, old: Array, winner: Array, share: float) -> Array:
    """The winner, or the old label where its score is above 0 and close to the highest."""
    score = _of_label(xp, scores, old)
    real = xp.float64 if xp.isdtype(scores.dtype, "integral") else scores.dtype
    close = xp.astype(score, real) >= (1 - share) * xp.astype(top, real)
    return xp.where((score > 0) & close, old, winner)


def _tie_rank(xp: Any, tie: Array, n_tied: Array, config: GuardConfig) -> Array:
    if config.tie_break == "first":
        return xp.zeros_like(n_tied)
    # A double just below 1 becomes 1 when it is turned into single precision.
    tie_rank = xp.astype(xp.floor(tie * xp.astype(n_tied, tie.dtype)), n_tied.dtype)
    return xp.where(tie_rank < n_tied, tie_rank, n_tied - 1)


def _voted(xp: Any, votes: Votes, top: Array, config: GuardConfig) -> Array:
    if config.label_from != "memory":
        return top > 0
    # Remembered sums stay positive for ever: ask this visit's votes whether anybody voted.
    return xp.any(votes.counts > 0, axis=-1) & (top > 0)


def _of_label(xp: Any, scores: Array, label: Array) -> Array:
    # An old label can lie beyond the answers that this batch knows of: nobody voted for it.
    known = (label >= 0) & (label < scores.shape[-1])
    index = xp.astype(xp.where(known, label, 0), xp.int64)
    score = xp.take_along_axis(scores, index[..., None], axis=-1)[..., 0]
    return xp.where(known, score, 0)
