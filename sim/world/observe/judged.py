"""Two judges of single responses: a tool that confirms, and a verifier that answers questions.

Both say yes to a right response with the true positive rate and to a wrong one, unparseable ones
among them, with the false positive rate, independently for every response and question. Where the
rates are equal they know nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.random import fold, stream, unit


@njit(cache=True, nogil=True)
def draw_verdicts(
    purpose: int,
    seed: int,
    first: int,
    epoch: int,
    problems_RP: NDArray[np.int64],
    truth_RP: NDArray[np.int32],
    answers_RPQ: NDArray[Any],
    tpr: float,
    fpr: float,
    out_RPQ: NDArray[np.int8],
) -> None:
    """Draw a judge's verdict on each response: 1 right, 0 wrong, -1 not asked.

    Args:
        purpose: names the judge's random numbers.
        seed: of the run.
        first: number of the first replicate.
        epoch: 0 before training.
        problems_RP: the batch.
        truth_RP: true answers.
        answers_RPQ: answers of the responses, -2 where nothing is asked.
        tpr: chance that a right response is judged right.
        fpr: chance that a wrong one is.
        out_RPQ: output.
    """
    R, P, Q = answers_RPQ.shape
    for r in range(R):
        key = stream(seed, first + r, purpose, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for q in range(Q):
                answer = answers_RPQ[r, p, q]
                chance = tpr if answer == truth_RP[r, p] else fpr
                out_RPQ[r, p, q] = -1 if answer == -2 else unit(leaf, q) < chance
