"""Similarity of two responses.

    s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i + u_j),    s_ii = 1

b is `signal` and u_i, uniform in [-1, 1], how ordinary a response is: some resemble all
others, some none. Unparseable responses share no answer. All lies in [.3, 1]; at b = 0 novelty
knows nothing of the answer. The truth has no part in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.random import ODDNESS, fold, stream, word

BASE, SAME, SPREAD = 0.5, 0.3, 0.1
STEP = 2.0**-15
EDGE = 1 - STEP / 2
"""u is `STEP` times a whole number below 65536, minus `EDGE`."""
_S48 = np.uint64(48)
Floats = NDArray[np.float64]


@njit(inline="always")
def rank(key: Any, draw: Any) -> Any:
    """The number u as a whole one from 0 to 65535: draw 0, 1, ... of a key."""
    return np.int64(word(key, draw) >> _S48)


@njit(cache=True, nogil=True)
def draw_ordinary(
    seed: int, first: int, epoch: int, problems_RP: NDArray[np.int64], out_RPK: Floats
) -> None:
    """Draw u for every trained response.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        out_RPK: output.
    """
    R, P, K = out_RPK.shape
    for r in range(R):
        key = stream(seed, first + r, ODDNESS, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for k in range(K):
                out_RPK[r, p, k] = STEP * rank(leaf, k) - EDGE


def similarities(answers_RPK: NDArray[np.int32], u_RPK: Floats, strength: float) -> Floats:
    """(R, P, K, K) of s_ij."""
    same = (answers_RPK[..., :, None] == answers_RPK[..., None, :]) & (answers_RPK >= 0)[..., None]
    s_RPKK = BASE + SAME * strength * same + SPREAD * (u_RPK[..., :, None] + u_RPK[..., None, :])
    K = answers_RPK.shape[-1]
    s_RPKK[..., np.arange(K), np.arange(K)] = 1.0
    return s_RPKK
