"""`EvolRL.pay` in a number of operations that grows with K and not with its square, compiled.

With the similarities of `sim.observe.similarity`, s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i + u_j), a
response's mean similarity to a side and its greatest one follow from sums and the two largest u of
every answer.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.observe.similarity import BASE, SAME, SPREAD

Floats = NDArray[np.float64]
_EQUAL = 1e-6
"""Novelties that differ by less are equal, as in guard_core."""


@njit(cache=True)
def novelty_rewards(
    answers_RPK: NDArray[np.int32],
    u_RPK: Floats,
    label_RP: NDArray[np.int64],
    strength: float,
    n_answers: int,
    out_RPK: Floats,
) -> None:
    """Rewards of all trained responses.

    Args:
        answers_RPK: their answers, -1 for unparseable.
        u_RPK: how ordinary they are.
        label_RP: answer ids, -1 for none.
        strength: b.
        n_answers: A.
        out_RPK: output.
    """
    R, P, K = answers_RPK.shape
    novel_K = np.empty(K)
    n_A1, top_A1 = np.empty(n_answers + 1), np.empty(n_answers + 1)
    next_A1 = np.empty(n_answers + 1)
    n_2, sum_2, per_2 = np.empty(2), np.empty(2), np.empty(2)
    low_2, high_2, scale_2 = np.empty(2), np.empty(2), np.empty(2)
    for r in range(R):
        for p in range(P):
            answers_K, u_K, label = answers_RPK[r, p], u_RPK[r, p], label_RP[r, p]
            _largest(answers_K, u_K, n_A1, top_A1, next_A1)
            n_2[:], sum_2[:], low_2[:], high_2[:] = 0.0, 0.0, np.inf, -np.inf
            for k in range(K):
                if answers_K[k] >= 0:
                    side = int(answers_K[k] == label)
                    n_2[side] += 1
                    sum_2[side] += u_K[k]
            for side in range(2):
                per_2[side] = 1 / max(n_2[side] - 1, 1)
            for k in range(K):
                a = answers_K[k]
                if a < 0:
                    continue
                side = int(a == label)
                mean = BASE + SAME * strength * (n_A1[a] - 1) * per_2[side]
                mean += SPREAD * (u_K[k] + (sum_2[side] - u_K[k]) * per_2[side])
                same = next_A1[a] if u_K[k] == top_A1[a] else top_A1[a]
                other = next_A1[n_answers] if u_K[k] == top_A1[n_answers] else top_A1[n_answers]
                # All others count, those with the same answer twice: without the bonus they lose.
                most = max(SAME * strength + SPREAD * (u_K[k] + same), SPREAD * (u_K[k] + other))
                most = max(BASE + most, 0.0)
                novel_K[k] = 1 - (mean + most) / 2
                low_2[side] = novel_K[k] if novel_K[k] < low_2[side] else low_2[side]
                high_2[side] = novel_K[k] if novel_K[k] > high_2[side] else high_2[side]
            for side in range(2):
                width = high_2[side] - low_2[side]
                scale_2[side] = 1 / width if width > _EQUAL else 0.0
            _pay(answers_K, label, novel_K, n_2, low_2, scale_2, out_RPK[r, p])


@njit
def _pay(
    answers_K: NDArray[np.int32],
    label: int,
    novel_K: Floats,
    n_2: Floats,
    low_2: Floats,
    scale_2: Floats,
    out_K: Floats,
) -> None:
    """Novelties scaled to [0, 1] inside each side; the scale is 0 where all are equal."""
    for k in range(answers_K.shape[0]):
        if answers_K[k] < 0:
            out_K[k] = -1.0
            continue
        side = int(answers_K[k] == label)
        scaled = (novel_K[k] - low_2[side]) * scale_2[side] if scale_2[side] > 0 else 0.5
        if side:
            out_K[k] = 1.0 if n_2[side] == 1 else 0.5 + 0.5 * scaled
        else:
            out_K[k] = -0.5 if n_2[side] == 1 else -1 + 0.5 * scaled


@njit
def _largest(
    answers_K: NDArray[np.int32], u_K: Floats, n_A1: Floats, top_A1: Floats, next_A1: Floats
) -> None:
    """Number and two largest u of every answer's responses, and of all parseable ones, last."""
    last = n_A1.shape[0] - 1
    n_A1[:], top_A1[:], next_A1[:] = 0.0, -np.inf, -np.inf
    for k in range(answers_K.shape[0]):
        if answers_K[k] < 0:
            continue
        for of_all in range(2):
            place = last if of_all else answers_K[k]
            n_A1[place] += 1
            if u_K[k] > top_A1[place]:
                next_A1[place] = top_A1[place]
                top_A1[place] = u_K[k]
            elif u_K[k] > next_A1[place]:
                next_A1[place] = u_K[k]
