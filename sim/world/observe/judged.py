"""Two judges of single responses: a tool that confirms, and a verifier that answers questions.

Both say yes to a right response with the true positive rate and to a wrong one, unparseable ones
among them, with the false positive rate, independently for every response and question. Where the
rates are equal they know nothing.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.random import TOOL, VERDICT, fold, stream, unit


@njit(cache=True)
def draw_tool(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: NDArray[np.int64],
    truth_RP: NDArray[np.int32],
    answers_RPV: NDArray[np.int32],
    tpr: float,
    fpr: float,
    out_RPV: NDArray[np.bool_],
) -> None:
    """Verdicts of a tool on each response.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: 0 before training.
        problems_RP: the batch.
        truth_RP: true answers.
        answers_RPV: the responses' answers.
        tpr: chance for a right response.
        fpr: chance for a wrong one.
        out_RPV: output.
    """
    R, P, V = answers_RPV.shape
    for r in range(R):
        key = stream(seed, first + r, TOOL, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for v in range(V):
                chance = tpr if answers_RPV[r, p, v] == truth_RP[r, p] else fpr
                out_RPV[r, p, v] = unit(leaf, v) < chance


@njit(cache=True)
def draw_verdicts(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: NDArray[np.int64],
    truth_RP: NDArray[np.int32],
    answers_RPQ: NDArray[np.int64],
    tpr: float,
    fpr: float,
    out_RPQ: NDArray[np.int8],
) -> None:
    """The verdict on each response that is asked about: 1 right, 0 wrong, -1 not asked.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        truth_RP: true answers.
        answers_RPQ: answers of the responses that are asked about, -2 where nothing is asked.
        tpr: chance that a right response is judged right.
        fpr: chance that a wrong one is.
        out_RPQ: output.
    """
    R, P, Q = answers_RPQ.shape
    for r in range(R):
        key = stream(seed, first + r, VERDICT, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for q in range(Q):
                answer = answers_RPQ[r, p, q]
                chance = tpr if answer == truth_RP[r, p] else fpr
                out_RPQ[r, p, q] = -1 if answer == -2 else unit(leaf, q) < chance
