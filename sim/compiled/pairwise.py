"""NumPy's sum in compiled code: the order of additions decides the last bit."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit
def numpy_sum(values_P: Floats) -> float:
    """NumPy's pairwise sum, which is not the sum from left to right.

    Halves of more than 128 values are halved again; the stack holds the halves to come (start,
    stop), with stop = -1 for "add the last two sums". Numba cannot cache a recursion.
    """
    stack_S2 = np.empty((128, 2), np.int64)
    sums_S = np.empty(64)
    stack_S2[0] = (0, values_P.shape[0])
    depth, n_sums = 1, 0
    while depth > 0:
        depth -= 1
        start, stop = stack_S2[depth]
        if stop < 0:
            n_sums -= 1
            sums_S[n_sums - 1] += sums_S[n_sums]
        elif stop - start <= 128:
            sums_S[n_sums] = _block_sum(values_P[start:stop])
            n_sums += 1
        else:
            half = (stop - start) // 2
            middle = start + half - half % 8
            stack_S2[depth] = (0, -1)
            stack_S2[depth + 1] = (middle, stop)
            stack_S2[depth + 2] = (start, middle)
            depth += 3
    return sums_S[0]


@njit
def _block_sum(values_P: Floats) -> float:
    """Up to 128 values in eight lanes, then the rest."""
    n = values_P.shape[0]
    total = 0.0
    in_lanes = n - n % 8 if n >= 8 else 0
    if in_lanes > 0:
        lanes_8 = values_P[:8].copy()
        for place in range(8, in_lanes):
            lanes_8[place % 8] += values_P[place]
        pairs_4 = lanes_8[0::2] + lanes_8[1::2]
        total = (pairs_4[0] + pairs_4[1]) + (pairs_4[2] + pairs_4[3])
    for place in range(in_lanes, n):
        total += values_P[place]
    return total
