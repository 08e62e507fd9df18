"""Confidences summed over an answer's responses without making the single ones, compiled.

x = level + noise (`sim.world.observe.confidence`): what an answer's responses add up to follows
from how
many they are and from the sum of their noise, which `sim.world.observe.bell` gives as a whole
number. The responses stand in the order of `sim.world.observe.responses.expand`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.advantages import STD_FLOOR
from sim.world.observe.bell import bell
from sim.world.observe.confidence import Scale, levels, noise_of
from sim.world.random import CONFIDENCE, fold, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_EQUAL = 1e-6
"""Entropies, in nats, that differ by less are equal, as in guard_core."""
_NOTHING = 1e-12
"""Squares that add up to a smaller share of all are rounding."""


@njit(cache=True)
def confident_sums(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    truth_RP: NDArray[np.int32],
    p_RPA: Floats,
    samples_RPA: Ints,
    n_samples: int,
    signal: float,
    share: float,
    scale: Scale,
    unparseable: float,
    out_RPA: Floats,
) -> None:
    """Advantages of rewards that are the confidence, summed over every answer's responses.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        truth_RP: true answers.
        p_RPA: answer probabilities.
        samples_RPA: trained responses per answer.
        n_samples: K.
        signal: s.
        share: h.
        scale: how x is read as a reward: mean and slope, which is above 0.
        unparseable: reward of an unparseable response; NaN where it is its confidence.
        out_RPA: output.
    """
    R, P, A = p_RPA.shape
    K = n_samples
    mean, slope = scale
    noise, worth = noise_of(signal, share), (unparseable - mean) / slope
    paid = A if np.isnan(unparseable) else A - 1  # the last column whose rewards are confidences
    level_A1, n_A1, bell_K = np.empty(A + 1), np.empty(A + 1, np.int64), np.empty(K, np.int64)
    one_K1, two_K1 = np.zeros(K + 1, np.int64), np.zeros(K + 1, np.int64)
    for r in range(R):
        key = stream(seed, first + r, CONFIDENCE, epoch)
        for p in range(P):
            levels(p_RPA[r, p], truth_RP[r, p], signal, share, level_A1)
            leaf = fold(key, problems_RP[r, p])
            for k in range(K):
                bell_K[k] = bell(leaf, k)
            for k in range(K):
                one_K1[k + 1] = one_K1[k] + bell_K[k]
                two_K1[k + 1] = two_K1[k] + bell_K[k] * bell_K[k]
            n_A1[A] = K
            for a in range(A):
                n_A1[a] = samples_RPA[r, p, a]
                n_A1[A] -= n_A1[a]
            total, square, start = 0.0, 0.0, 0
            for a in range(paid + 1):
                n, level, stop = n_A1[a], level_A1[a], start + n_A1[a]
                one, two = one_K1[stop] - one_K1[start], two_K1[stop] - two_K1[start]
                start = stop
                x = n * level + noise * one
                total += x
                square += n * level * level + noise * (2 * level * one + noise * two)
                if a < A:
                    out_RPA[r, p, a] = x
            if paid < A:
                total += n_A1[A] * worth
                square += n_A1[A] * worth * worth
            spread = square - total * total / K
            if spread <= _NOTHING * square:
                out_RPA[r, p, :] = 0.0
                continue
            width = np.sqrt(spread / max(K - 1, 1)) + STD_FLOOR / slope
            for a in range(A):
                out_RPA[r, p, a] = (out_RPA[r, p, a] - n_A1[a] * total / K) / width


@njit(cache=True)
def excess_confidence(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    truth_RP: NDArray[np.int32],
    p_RPA: Floats,
    counts_RPA: Ints,
    samples_RPA: Ints,
    n_votes: int,
    n_samples: int,
    signal: float,
    share: float,
    slope: float,
    out_RPA: Floats,
) -> None:
    """Mean over an answer's responses minus the mean over all V; 0 without any.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        truth_RP: true answers.
        p_RPA: answer probabilities.
        counts_RPA: votes per answer.
        samples_RPA: those among the first K.
        n_votes: V.
        n_samples: K.
        signal: s.
        share: h.
        slope: what x is multiplied by.
        out_RPA: output.
    """
    R, P, A = p_RPA.shape
    noise = noise_of(signal, share)
    level_A1, bell_V = np.empty(A + 1), np.empty(n_votes, np.int64)
    upto_V1 = np.zeros(n_votes + 1, np.int64)
    for r in range(R):
        key = stream(seed, first + r, CONFIDENCE, epoch)
        for p in range(P):
            levels(p_RPA[r, p], truth_RP[r, p], signal, share, level_A1)
            leaf = fold(key, problems_RP[r, p])
            for v in range(n_votes):
                bell_V[v] = bell(leaf, v)
            for v in range(n_votes):
                upto_V1[v + 1] = upto_V1[v] + bell_V[v]
            total, parsed, trained, rest = noise * upto_V1[n_votes], 0, 0, n_samples
            for a in range(A):
                n = counts_RPA[r, p, a]
                until = trained + samples_RPA[r, p, a]
                until_rest = rest + n - samples_RPA[r, p, a]
                own = upto_V1[until] - upto_V1[trained] + upto_V1[until_rest] - upto_V1[rest]
                trained, rest, parsed = until, until_rest, parsed + n
                total += n * level_A1[a]
                out_RPA[r, p, a] = level_A1[a] + noise * own * (1 / max(n, 1))
            mean = (total + (n_votes - parsed) * level_A1[A]) / n_votes
            for a in range(A):
                excess = slope * (out_RPA[r, p, a] - mean)
                known = 1.0 * (counts_RPA[r, p, a] > 0) * (abs(excess) > _EQUAL)
                out_RPA[r, p, a] = known * excess
