"""How sure a response is of itself: one normal number, read as log-prob, entropy or certainty.

    x_i = s (2 [right_i] - 1) + h l(a_i) + sqrt(1 - s^2 - h^2) e_i,    e_i standard normal

s is `confidence_signal`, h `confidence_share`, and l(a) the answer's log-probability, standardised
over the problem's A answers (0 for unparseable responses, which count as wrong). The scales below
are of the size that language models show; rules that standardise or compare do not depend on them.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.observe.normal import quantile
from sim.random import CONFIDENCE, fold, stream, unit

Floats = NDArray[np.float64]

Scale = tuple[float, float, float, float]
LOGPROB: Scale = (-0.4, 0.12, -np.inf, 0.0)
"""Mean log-prob of a response's steps: mean, slope in x, least and largest value, in nats."""
ENTROPY: Scale = (0.4, -0.12, 0.0, np.inf)
"""Mean token entropy."""
CERTAINTY: Scale = (17.0, 1.5, 0.0, np.inf)
"""Mean divergence of the uniform law from the tokens' law."""
_LEAST = 1e-300


@njit(cache=True)
def draw_confidence(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: NDArray[np.int64],
    truth_RP: NDArray[np.int32],
    p_RPA: Floats,
    answers_RPM: NDArray[np.int32],
    signal: float,
    share: float,
    scale: Scale,
    out_RPM: Floats,
) -> None:
    """Draw the confidence of the first M responses of every problem.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: 0 before training.
        problems_RP: the batch.
        truth_RP: true answers.
        p_RPA: answer probabilities.
        answers_RPM: the responses' answers.
        signal: s.
        share: h.
        scale: how x is read, for example `LOGPROB`.
        out_RPM: output.
    """
    R, P, A = p_RPA.shape
    M = out_RPM.shape[2]
    mean, slope, least, most = scale
    noise = np.sqrt(max(1 - signal * signal - share * share, 0.0))
    level_A, u_M = np.empty(A + 1), np.empty(M)
    for r in range(R):
        key = stream(seed, first + r, CONFIDENCE, epoch)
        for p in range(P):
            level_A[:] = 0.0
            if share > 0:
                _standardise(p_RPA[r, p], share, level_A)
            for a in range(A + 1):
                level_A[a] += signal if a == truth_RP[r, p] else -signal
            leaf = fold(key, problems_RP[r, p])
            for m in range(M):
                u_M[m] = unit(leaf, m)
            for m in range(M):
                answer = answers_RPM[r, p, m]
                level = level_A[answer if answer >= 0 else A]
                value = mean + slope * (level + noise * quantile(u_M[m]))
                value = least if value < least else value
                out_RPM[r, p, m] = most if value > most else value


@njit
def _standardise(p_A: Floats, share: float, level_A: Floats) -> None:
    """`share` times the log-probabilities minus their mean over their standard deviation."""
    A = p_A.shape[0]
    mean, square = 0.0, 0.0
    for a in range(A):
        level_A[a] = np.log(max(p_A[a], _LEAST))
        mean += level_A[a] / A
    for a in range(A):
        level_A[a] -= mean
        square += level_A[a] * level_A[a] / A
    for a in range(A):
        level_A[a] *= share / np.sqrt(square) if square > 1e-18 else 0.0
