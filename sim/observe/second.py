"""A second vote set: answers to a rewording of the problem, or of a slower teacher.

Rewording: V2 answers from (1 - d) p + d p', with d = `second_independence`. p' keeps the right
answer's probability and hands the wrong ones' on by a uniform permutation of the wrong answers, one
per problem for the whole run (`permuted`) or one per visit (`fresh`). At d = 0 it makes the very
errors of the question, so it adds votes and no news; at d = 1 the most popular errors of the two
agree by chance alone.

Teacher: V2 answers from q, the exponential moving average of the problem's answer probabilities,
started before training. Its rate falls from `teacher_rate` to `teacher_rate_end` along a cosine,
batch by batch. A problem's average is brought up to date when it is visited: the batches since its
last visit count as if its probabilities had been today's all along.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.config import SimConfig
from sim.random import SECOND, SECOND_ORDER, fold, stream, unit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True)
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
    u_V, q_A = np.empty(n_votes), np.empty(A)
    for r in range(R):
        key = stream(seed, first + r, SECOND, epoch)
        order_key = stream(seed, first + r, SECOND_ORDER, order_epoch)
        for p in range(P):
            q_A[:] = p_RPA[r, p]
            if independence > 0:
                leaf = fold(order_key, problems_RP[r, p])
                _mix_in_permuted(leaf, truth_RP[r, p], independence, q_A)
            leaf = fold(key, problems_RP[r, p])
            for v in range(n_votes):
                u_V[v] = unit(leaf, v)
            bound, below = 0.0, 0
            for a in range(A):
                bound += parseable * q_A[a]
                if a == A - 1:
                    bound = parseable  # not the rounded sum, which may fall short of it
                found = 0
                for v in range(n_votes):
                    found += u_V[v] < bound
                counts_RPA[r, p, a] = found - below
                below = found


@njit
def _mix_in_permuted(leaf: np.uint64, truth: int, independence: float, q_A: Floats) -> None:
    """(1 - d) q + d q', q' with the wrong answers' shares permuted (Fisher and Yates)."""
    A = q_A.shape[0]
    other_A = q_A.copy()
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
        low, high = config.teacher_rate_end, config.teacher_rate
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


@njit(cache=True)
def _follow(
    kept_B: Floats,
    batch: int,
    problems_RP: Ints,
    p_RPA: Floats,
    last_RN: Ints,
    q_RNA: Floats,
    out_RPA: Floats,
) -> None:
    R, P, A = p_RPA.shape
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
