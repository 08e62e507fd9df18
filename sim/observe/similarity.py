"""How alike two responses are.

    s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i + u_j),    s_ii = 1

b is `similarity_answer` and u_i, uniform in [-1, 1], how ordinary a response is: some resemble all
others, some none. Unparseable responses share no answer. All lies in [.3, 1]; at b = 0 novelty
knows nothing of the answer. The truth has no part in it.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.random import ODDNESS, fold, stream, unit

BASE, SAME, SPREAD = 0.5, 0.3, 0.1
Floats = NDArray[np.float64]


@njit(cache=True)
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
                out_RPK[r, p, k] = 2 * unit(leaf, k) - 1


def similarities(answers_RPK: NDArray[np.int32], u_RPK: Floats, strength: float) -> Floats:
    """(R, P, K, K) of s_ij."""
    same = (answers_RPK[..., :, None] == answers_RPK[..., None, :]) & (answers_RPK >= 0)[..., None]
    s_RPKK = BASE + SAME * strength * same + SPREAD * (u_RPK[..., :, None] + u_RPK[..., None, :])
    K = answers_RPK.shape[-1]
    s_RPKK[..., np.arange(K), np.arange(K)] = 1.0
    return s_RPKK
