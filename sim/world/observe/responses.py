"""The single responses behind a visit's counts.

Given the counts, the V responses are exchangeable within the K trained ones and within the rest, so
any fixed order will do: the trained ones first, each part by answer, unparseable ones at its end.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def expand(
    counts_RPA: NDArray[np.int64],
    samples_RPA: NDArray[np.int64],
    n_samples: int,
    answers_RPV: NDArray[np.int32],
) -> None:
    """Write the answers of all responses, -1 for unparseable ones.

    Args:
        counts_RPA: votes per answer.
        samples_RPA: those among the first K.
        n_samples: K.
        answers_RPV: output; with K columns only the trained ones are written.
    """
    R, P, A = counts_RPA.shape
    V = answers_RPV.shape[2]
    for r in range(R):
        for p in range(P):
            v = 0
            for a in range(A):
                for _ in range(samples_RPA[r, p, a]):
                    answers_RPV[r, p, v] = a
                    v += 1
            while v < n_samples:
                answers_RPV[r, p, v] = -1
                v += 1
            if v == V:
                continue
            for a in range(A):
                for _ in range(counts_RPA[r, p, a] - samples_RPA[r, p, a]):
                    answers_RPV[r, p, v] = a
                    v += 1
            while v < V:
                answers_RPV[r, p, v] = -1
                v += 1
