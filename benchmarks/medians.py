"""The middle of noisy times, with an interval that supposes nothing of their distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Middle(NamedTuple):
    """A median of n numbers and its interval."""

    median: float
    low: float
    high: float
    """95 % interval at least; NaN for fewer than six numbers."""

    def times(self, factor: float) -> Middle:
        """All three in another unit."""
        return Middle(*(factor * value for value in self))


def middle(values: Sequence[float]) -> Middle:
    """Median and interval of at least one number.

    The median lies between the k-th smallest and the k-th largest of n independent numbers unless
    fewer than k of them fall on one side, whose probability is that of n tosses of a coin.
    """
    ordered, n = sorted(values), len(values)
    k, beyond = 0, 0.5**n
    while 2 * beyond <= 0.05:
        k += 1
        beyond += math.comb(n, k) * 0.5**n
    low, high = (ordered[k - 1], ordered[n - k]) if k else (math.nan, math.nan)
    return Middle(statistics.median(ordered), low, high)
