"""The label of a visit: the answer with most votes (paper equation 1; docs/method.md, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from guard_core.config import ROUNDING, GuardConfig, Numbers, Settings, settings
from guard_core.votes import Array, Votes


def remember(memory: Numbers, scores: Sequence[Any], discount: float) -> None:
    """Add a visit's scores to the discounted memory of the visits before, in place."""
    for a in range(len(scores)):
        memory[a] = discount * memory[a] + scores[a]


def choose_label(
    s: Settings, scores: Sequence[Any], now: Sequence[Any], old: int, tie: float
) -> tuple[int, bool]:
    """Return the label (paper equation 1), and whether several answers shared the first place.

    Args:
        scores: per answer; those of `now`, or the memory with this visit in it.
        now: this visit's votes, or a rule's scores.
        old: label before this visit, -1 for none.
    """
    top, n_tied, label = winner(scores, old, tie, s.tie_break_first, s.tie_break_incumbent)
    if s.hysteresis > 0 and 0 <= old < len(scores):
        close = scores[old] >= (1 - s.hysteresis) * top - ROUNDING
        label = old if scores[old] > 0 and close else label
    voted = top > 0
    if s.label_from_memory and voted:
        # Remembered sums stay positive for ever: look whether this visit adds to them.
        voted = False
        for a in range(len(now)):
            voted |= now[a] > 0
    if not voted or (s.label_from_frozen and old >= 0):
        label = old
    return label, voted and n_tied > 1


def winner(
    scores: Sequence[Any], old: int, tie: float, first: bool, incumbent: bool
) -> tuple[Any, int, int]:
    """Return the highest score, how many have it up to rounding, and which answer wins."""
    top, n_tied, label = scores[0], 0, 0
    low = (1 - ROUNDING) * top
    for a in range(len(scores)):
        if (1 - ROUNDING) * scores[a] > top:
            top, n_tied, label = scores[a], 0, a
            low = (1 - ROUNDING) * top
        n_tied += scores[a] >= low
    if n_tied == 1 or first:
        return top, n_tied, label
    if incumbent and 0 <= old < len(scores) and scores[old] >= low:
        return top, n_tied, old
    # In single precision a number just below 1 can round up to 1.
    n_left = min(int(tie * n_tied), n_tied - 1)
    while n_left > 0:
        label += 1
        n_left -= scores[label] >= low
    return top, n_tied, label


def choose_majority(votes: Votes, old: Array, tie: Array, config: GuardConfig) -> Array:
    """(..., P) answers with most of this visit's votes, wherever the guard's labels come from.

    `old` are the labels where nobody voted, and the incumbents of ties; -1 for none.
    """
    config = config.set(label_from="current", hysteresis=0.0)
    s = settings(config, votes.n_votes, votes.n_samples)
    counts = votes.counts.reshape(-1, votes.counts.shape[-1]).tolist()
    rows = zip(counts, old.reshape(-1).tolist(), tie.reshape(-1).tolist(), strict=True)
    labels = [choose_label(s, row, row, before, at)[0] for row, before, at in rows]
    return np.array(labels, old.dtype).reshape(old.shape)
