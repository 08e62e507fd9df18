"""Bell-shaped random numbers by position: a random word's eight bytes, summed.

Minus `MIDDLE` and over `WIDTH` they have mean 0 and variance 1, lie within +-4.88, and differ from
normal numbers by an excess kurtosis of -.15. Sums of whole numbers are exact: what several of them
add up to does not depend on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from sim.world.random import word

MIDDLE = 4 * 255
"""Mean of a sum of eight bytes."""
WIDTH = float(np.sqrt(8 * (256**2 - 1) / 12))
"""Its standard deviation."""
MOST = MIDDLE / WIDTH
"""The largest of the standardised numbers."""

_BYTES = np.uint64(0x00FF00FF00FF00FF)
_LAST = np.uint64(0xFFFF)
_S8, _S16, _S32 = np.uint64(8), np.uint64(16), np.uint64(32)


@njit(inline="always")
def bell(key: Any, draw: Any) -> Any:
    """A sum of eight bytes minus `MIDDLE`, a whole number: draw 0, 1, ... of a key."""
    x = word(key, draw)
    x = (x & _BYTES) + ((x >> _S8) & _BYTES)
    x = x + (x >> _S32)
    return np.int64((x + (x >> _S16)) & _LAST) - MIDDLE
