"""The labels of SCOPE's 2 V - 1 subgroups per problem, without drawing their numbers in full.

A subset holds the responses with the n smallest of V uniform numbers. Compared bit by bit, with the
same bit of 64 numbers in one random word (`sim.world.random.plane`), a few words decide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.random import LANES, PLANES, RULE, fold, plane, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_NONE, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


def fills_words(n_votes: int) -> bool:
    """Return whether the numbers of a subset fill words, or lie side by side in one."""
    return n_votes % LANES == 0 or LANES % n_votes == 0


@njit(cache=True, nogil=True)
def subgroup_labels(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    answers_RPV: NDArray[np.int32],
    weights_RPV: Floats,
    prior_RPA: Floats,
    n_drawn: int,
    out_RPG: Ints,
) -> None:
    """Choose the label of every subgroup: the answer with most confidence in its subset.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        answers_RPV: answers of all responses, -1 for unparseable.
        weights_RPV: their confidences, at least 0.
        prior_RPA: remembered scores times the share that is drawn; all 0 without memory.
        n_drawn: responses in a subset.
        out_RPG: output; the smallest of equal answers, -2 where none has a confidence above 0.
    """
    R, P, V = answers_RPV.shape
    score_A = np.empty(prior_RPA.shape[2])
    words_3W = np.empty((3, -(-V // LANES)), np.uint64)
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        for p in range(P):
            answer_V, weight_V, prior_A = answers_RPV[r, p], weights_RPV[r, p], prior_RPA[r, p]
            sure = _sure_label(answer_V, weight_V, prior_A, n_drawn, score_A)
            if sure >= 0:
                out_RPG[r, p] = sure
                continue
            leaf = fold(key, problems_RP[r, p])
            for g in range(out_RPG.shape[2]):
                _draw_subset(leaf, g * V, V, n_drawn, words_3W)
                score_A[:] = prior_A
                for v in range(V):
                    drawn = (words_3W[0, v // LANES] >> np.uint64(v % LANES)) & _ONE
                    score_A[answer_V[v]] += weight_V[v] if drawn and answer_V[v] >= 0 else 0.0
                out_RPG[r, p, g] = np.argmax(score_A) if score_A.max() > 0 else -2


@njit
def _sure_label(
    answer_V: NDArray[np.int32], weight_V: Floats, prior_A: Floats, n_drawn: int, most_A: Floats
) -> int:
    """Return the answer that wins in every possible subset; -1 if there may be none."""
    V, n_A = answer_V.shape[0], np.zeros(prior_A.shape[0], np.int64)
    most_A[:] = prior_A
    for v in range(V):
        if answer_V[v] >= 0:
            n_A[answer_V[v]] += 1
            most_A[answer_V[v]] += weight_V[v]
    top, least = np.argmax(n_A), np.inf
    for v in range(V):
        least = min(least, weight_V[v]) if answer_V[v] == top else least
    fewest = n_A[top] - (V - n_drawn)
    score = prior_A[top] + fewest * least
    most_A[top] = 0.0
    return int(top) if fewest > 0 and score > most_A.max() else -1


@njit
def _draw_subset(leaf: Any, start: int, V: int, n: int, words_3W: Words) -> None:
    """Write the members as bits of `words_3W[0]`; numbers equal in all bits are all in or all out.

    Args:
        leaf: names the random numbers.
        start: the first of the V numbers.
        V: number of responses.
        n: how many are drawn.
        words_3W: output, and room for those not decided and those whose number goes on with a 0.
    """
    drawn_W, open_W, zero_W = words_3W[0], words_3W[1], words_3W[2]
    drawn_W[:], open_W[:] = _NONE, _ALL >> np.uint64(max(LANES - V, 0))
    missing, n_open, shift = n, V, np.uint64(start % LANES)
    for bit in range(PLANES):
        if n_open <= missing:
            break
        n_zeros = 0
        for w in range(drawn_W.shape[0]):
            zero_W[w] = open_W[w] & ~(plane(leaf, start // LANES + w, bit) >> shift)
            n_zeros += _size(zero_W[w])
        if n_zeros > missing:
            open_W[:], n_open = zero_W, n_zeros
            continue
        for w in range(drawn_W.shape[0]):
            drawn_W[w] |= zero_W[w]
            open_W[w] &= ~zero_W[w]
        missing, n_open = missing - n_zeros, n_open - n_zeros
        if missing == 0:
            return
    for w in range(drawn_W.shape[0]):
        drawn_W[w] |= open_W[w]


@njit(inline="always")
def _size(x: Any) -> Any:
    """Number of bits set; written so that compilers know it for a population count."""
    x = x - ((x >> _ONE) & _PAIRS)
    x = (x & _FOURS) + ((x >> np.uint64(2)) & _FOURS)
    return np.int64((((x + (x >> np.uint64(4))) & _BYTES) * _ONES) >> np.uint64(56))
