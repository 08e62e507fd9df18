"""A second vote set: answers to a rewording of the problem, or of a slower teacher.

Rewording: V2 answers from (1 - d) p + d p', with d = `signal`. p' keeps the right
answer's probability and hands the wrong ones' on by a uniform permutation of the wrong answers, one
per problem for the whole run (`permuted`) or one per visit (`fresh`). At d = 0 it makes the very
errors of the question, so it adds votes and no news; at d = 1 the most popular errors of the two
agree by chance alone.

Teacher: V2 answers from q, the exponential moving average of the problem's answer probabilities,
started before training. Its rate falls from FIRST_RATE to LAST_RATE along a cosine,
batch by batch. A problem's average is brought up to date when it is visited: the batches since its
last visit count as if its probabilities had been today's all along.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.settings.config import SimConfig
from sim.world.random import SECOND, SECOND_ORDER, fold, stream, unit, word

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_RATE, LAST_RATE = 0.01, 1e-5
"""Rates of the teacher's average at the first and the last batch."""

_HALF, _S32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_MOST = 2.0**32 - 1


@njit(cache=True, nogil=True)
def draw_second(
    seed: int,
    first: int,
    epoch: int,
    order_epoch: int,
    problems_RP: Ints,
    truth_RP: NDArray[np.int32],
    p_RPA: Floats,
    parseable: float,
    independence: float,
    n_votes: int,
    counts_RPA: Ints,
) -> None:
    """Draw the votes of a second set.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: 0 before training.
        order_epoch: names the permutation: 0 for one that stays, else the epoch.
        problems_RP: the batch.
        truth_RP: true answers.
        p_RPA: answer probabilities of who answers.
        parseable: chance that a response holds an answer.
        independence: d.
        n_votes: V2.
        counts_RPA: output; votes per answer.
    """
    R, P, A = p_RPA.shape
    # Half a word a response is enough, and twice as many of them are compared at once.
    half_V, q_A, other_A = np.empty(n_votes + 1, np.uint32), np.empty(A), np.empty(A)
    for r in range(R):
        key = stream(seed, first + r, SECOND, epoch)
        order_key = stream(seed, first + r, SECOND_ORDER, order_epoch)
        for p in range(P):
            for a in range(A):
                q_A[a] = p_RPA[r, p, a]
            if independence > 0:
                leaf = fold(order_key, problems_RP[r, p])
                _mix_in_permuted(leaf, truth_RP[r, p], independence, q_A, other_A)
            leaf = fold(key, problems_RP[r, p])
            for pair in range((n_votes + 1) // 2):
                both = word(leaf, pair)
                half_V[2 * pair] = np.uint32(both & _HALF)
                half_V[2 * pair + 1] = np.uint32(both >> _S32)
            bound, below = 0.0, 0
            for a in range(A):
                # Not the rounded sum at last, which may fall short of all that can be parsed.
                bound = bound + parseable * q_A[a] if a < A - 1 else parseable
                limit, found = np.uint32(min(bound * 2.0**32, _MOST)), np.uint32(0)
                for v in range(n_votes):
                    found = np.uint32(found + np.uint32(half_V[v] < limit))
                if bound >= 1:
                    found = np.uint32(n_votes)
                counts_RPA[r, p, a] = np.int64(found) - below
                below = np.int64(found)


@njit
def _mix_in_permuted(
    leaf: np.uint64, truth: int, independence: float, q_A: Floats, other_A: Floats
) -> None:
    """(1 - d) q + d q', q' with the wrong answers' shares permuted (Fisher and Yates)."""
    A = q_A.shape[0]
    for a in range(A):
        other_A[a] = q_A[a]
    for place in range(A - 2, 0, -1):
        at = int(unit(leaf, place) * (place + 1))
        # Places among the wrong answers; those from the truth on lie one further.
        i, j = place + (place >= truth), at + (at >= truth)
        other_A[i], other_A[j] = other_A[j], other_A[i]
    for a in range(A):
        q_A[a] = (1 - independence) * q_A[a] + independence * other_A[a]


class Teacher:
    """The moving average of every problem's answer probabilities."""

    def __init__(self, config: SimConfig) -> None:
        """Know the schedule; the average itself starts at visit 0."""
        batches = max(config.epochs * config.n_batches, 1)
        along_B = np.arange(batches) / max(batches - 1, 1)
        low, high = LAST_RATE, FIRST_RATE
        rate_B = low + (high - low) * (1 + np.cos(np.pi * along_B)) / 2
        with np.errstate(divide="ignore"):
            self._kept_B = np.append(0.0, np.cumsum(np.log1p(-rate_B)))
        self._q_RNA = np.zeros((config.replicates, config.n_problems, config.n_answers))
        self._last_RN = np.zeros(self._q_RNA.shape[:2], np.int64)

    def follow(self, batch: int, problems_RP: Ints, p_RPA: Floats) -> Floats:
        """The teacher's probabilities of a batch, brought up to date.

        Args:
            batch: number of the batch over the whole run from 1; 0 before training.
            problems_RP: the batch.
            p_RPA: the model's probabilities.

        Returns:
            (R, P, A).
        """
        q_RPA = np.empty_like(p_RPA)
        _follow(self._kept_B, batch, problems_RP, p_RPA, self._last_RN, self._q_RNA, q_RPA)
        return q_RPA


@njit(cache=True, nogil=True)
def _follow(
    kept_B: Floats,
    batch: int,
    problems_RP: Ints,
    p_RPA: Floats,
    last_RN: Ints,
    q_RNA: Floats,
    out_RPA: Floats,
) -> float:
    """Bring a batch's averages up to date; what is returned means nothing.

    They lie scattered. The first loop, which has nothing to decide, waits for many of them at once.
    """
    R, P, A = p_RPA.shape
    met = 0.0
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            met += q_RNA[r, n, 0] + q_RNA[r, n, A - 1] + last_RN[r, n]
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            kept = 0.0
            if batch > 0 and kept_B[batch] > -np.inf:
                kept = np.exp(kept_B[batch] - kept_B[last_RN[r, n]])
            last_RN[r, n] = batch
            for a in range(A):
                q = kept * q_RNA[r, n, a] + (1 - kept) * p_RPA[r, p, a]
                q_RNA[r, n, a] = q
                out_RPA[r, p, a] = q
    return met
