"""Sets of up to 64 responses as the bits of a word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from sim.world.random import LANES

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


@njit(inline="always")
def size_of(x: Any) -> Any:
    """Number of members; written so that compilers know it for a population count."""
    x = x - ((x >> np.uint64(1)) & _PAIRS)
    x = (x & _FOURS) + ((x >> np.uint64(2)) & _FOURS)
    return np.int64((((x + (x >> np.uint64(4))) & _BYTES) * _ONES) >> np.uint64(56))


@njit(inline="always")
def span(start: Any, stop: Any) -> Any:
    """The members `start` to `stop` - 1, of 64."""
    if stop <= start:
        return np.uint64(0)
    return (_ALL >> np.uint64(64 - (stop - start))) << np.uint64(start)


@njit(inline="always")
def span_in(word: Any, start: Any, stop: Any) -> Any:
    """Those of the members `start` to `stop` - 1 of a longer row that stand in its n-th word."""
    return span(max(start - word * LANES, 0), min(stop - word * LANES, LANES))
