"""`RandomReward.pay`, summed over every answer's responses, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.rules.bits import size_of, span, span_in
from sim.rules.paid import two_valued_sums
from sim.world.random import LANES, PLANES, RULE, fold, plane, stream

Ints = NDArray[np.int64]


@njit(cache=True)
def random_sums(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    samples_RPA: Ints,
    n_samples: int,
    chance: float,
    out_RPA: NDArray[np.float64],
) -> None:
    """Advantages where every response is rewarded with the same chance.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        samples_RPA: trained responses per answer.
        n_samples: K.
        chance: of a reward.
        out_RPA: output.
    """
    R, P, A = samples_RPA.shape
    W = -(-n_samples // LANES)
    won_W, hits_A = np.empty(W, np.uint64), np.empty(A, np.int64)
    limit = np.uint64(np.ceil(chance * 2.0**PLANES))
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            all_hits, start = 0, 0
            for w in range(W):
                won_W[w] = _below(leaf, w, limit) & span_in(w, 0, n_samples)
                all_hits += size_of(won_W[w])
            for a in range(A):
                stop, hits_A[a] = start + samples_RPA[r, p, a], 0
                for w in range(start // LANES, -(-stop // LANES)):
                    hits_A[a] += size_of(won_W[w] & span_in(w, start, stop))
                start = stop
            two_valued_sums(samples_RPA[r, p], n_samples, hits_A, all_hits, out_RPA[r, p])


@njit
def _below(leaf: np.uint64, block: int, limit: np.uint64) -> np.uint64:
    """Which of 64 uniform numbers of 32 bits are smaller than `limit` / 2^32."""
    if limit >> np.uint64(PLANES):
        return span(0, LANES)
    below, open_ = np.uint64(0), span(0, LANES)
    for bit in range(PLANES):
        ahead = limit << np.uint64(LANES - PLANES + bit)
        if not ahead or not open_:  # what is left equals the limit, or nothing is left
            break
        x = plane(leaf, block, bit)
        if ahead >> np.uint64(LANES - 1):
            below, open_ = below | (open_ & ~x), open_ & x
        else:
            open_ &= ~x
    return below
