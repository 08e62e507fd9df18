"""Votes of a label against those of other answers (docs/method.md, section 16)."""

from __future__ import annotations

from typing import NamedTuple

from guard_core.arrays import Array, namespace, ordered_sum
from guard_core.config import GuardConfig


class Support(NamedTuple):
    """Support of every problem's label by the scores that it was chosen by."""

    share: Array
    """(..., P) score of the label over the sum of all, 0 where there is none."""
    margin: Array
    """(..., P) its lead over the best other answer in the same unit, 0 where it does not lead."""

    @classmethod
    def of(cls, scores: Array, is_label: Array) -> Support:
        """Compare the label with the other answers.

        Args:
            scores: (..., P, A) floats, at least 0.
            is_label: (..., P, A) bool.
        """
        xp = namespace(scores)
        nothing = xp.zeros_like(scores)
        own = xp.max(xp.where(is_label, scores, nothing), axis=-1)
        best = xp.max(xp.where(is_label, nothing, scores), axis=-1)
        total = ordered_sum(scores)
        total = xp.where(total > 0, total, xp.ones_like(total))
        lead = (own - best) / total
        return cls(own / total, xp.where(lead > 0, lead, xp.zeros_like(lead)))

    def weigh(self, weight: Array, config: GuardConfig) -> Array:
        """Return the weights (..., P) times `margin ** margin_power`."""
        # Products are the same in every library to the last bit; powers are not.
        for _ in range(config.margin_power):
            weight = weight * self.margin
        return weight
