"""Softmax of many rows of logits in compiled code, the same one for every policy.

The exponential is computed here and not by the system's library. It is several times faster, since
the compiler can run it on a whole vector of numbers, and it gives the same bits on every machine:
additions, products and a shift, in a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (
    1.0 / math.factorial(k) for k in range(2, 14)
)
_LOG2_E = 1.4426950408889634
# ln 2 in two parts: k times the first one is exact for every k that occurs.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0
"""1.5 * 2**52: adding and subtracting it rounds to a whole number."""
_LOWEST = -700.0
"""Below it the exponential is that of -700, about 1e-304; a probability it is 0 all the same."""


@njit(inline="always")
def exp_below_zero(x: Any) -> Any:
    """exp(x) for x <= 0, to less than one unit in the last place.

    x = k ln 2 + r with |r| <= ln 2 / 2; Taylor's series of r to the 13th power, times 2**k.
    """
    x = x if x > _LOWEST else _LOWEST
    k = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    q = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
    q = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * q)))))
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return (1.0 + (r + r * r * q)) * power


@njit(cache=True, nogil=True)
def softmax_rows(z_RPA: NDArray[np.float64]) -> int:
    """Turn logits into probabilities, in place.

    Args:
        z_RPA: logits of every answer.

    Returns:
        -1, or the flat place r * P + p of the first row with a logit that is not finite; what is
        left in that row means nothing.
    """
    R, P, A = z_RPA.shape
    bad = -1
    for r in range(R):
        for p in range(P):
            top = -np.inf
            finite = True
            for a in range(A):
                finite &= np.isfinite(z_RPA[r, p, a])
                top = z_RPA[r, p, a] if z_RPA[r, p, a] > top else top
            if not finite and bad < 0:
                bad = r * P + p
            for a in range(A):
                z_RPA[r, p, a] -= top
        # All of a replicate's rows as one, which is what makes vectors of it.
        z_K = z_RPA[r].reshape(P * A)
        for k in range(P * A):
            z_K[k] = exp_below_zero(z_K[k])
        for p in range(P):
            total = 0.0
            for a in range(A):
                total += z_RPA[r, p, a]
            for a in range(A):
                z_RPA[r, p, a] /= total
    return bad
