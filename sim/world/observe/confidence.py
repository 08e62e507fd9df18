"""Confidence of a response: one number, read as log-prob, entropy or certainty.

    x_i = s (2 [right_i] - 1) + h l(a_i) + sqrt(1 - s^2 - h^2) e_i,    e_i of
    `sim.world.observe.bell`

s is `signal`, h `confidence_share`, and l(a) the answer's log-probability, standardised
over the problem's A answers (0 for unparseable responses, which count as wrong). What the answer
contributes is cut where x could leave the scales below, which takes h > .5. The scales are of the
size that language models show; rules that standardise or compare do not depend on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.observe.bell import MOST, WIDTH, bell
from sim.world.random import CONFIDENCE, fold, stream

Floats = NDArray[np.float64]

Scale = tuple[float, float]
LOGPROB: Scale = (-0.8, 0.12)
"""Mean log-prob of a response's steps: mean and slope in x, in nats; below 0 for any x."""
ENTROPY: Scale = (0.8, -0.12)
"""Mean token entropy; above 0 for any x."""
CERTAINTY: Scale = (17.0, 1.5)
"""Mean divergence of the uniform law from the tokens' law."""
_FARTHEST = 0.8 / 0.12
"""No x is farther from 0."""
_LEAST = 1e-300


@njit(cache=True, nogil=True)
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
    mean, slope = scale
    level_A1, noise_M = np.empty(A + 1), np.empty(M)
    unit = noise_of(signal, share)
    for r in range(R):
        key = stream(seed, first + r, CONFIDENCE, epoch)
        for p in range(P):
            levels(p_RPA[r, p], truth_RP[r, p], signal, share, level_A1)
            leaf = fold(key, problems_RP[r, p])
            for m in range(M):
                noise_M[m] = unit * bell(leaf, m)
            for m in range(M):
                answer = answers_RPM[r, p, m]
                level = level_A1[answer if answer >= 0 else A]
                out_RPM[r, p, m] = mean + slope * (level + noise_M[m])


@njit(inline="always")
def noise_of(signal: Any, share: Any) -> Any:
    """Change of x per unit of `bell`."""
    return np.sqrt(max(1 - signal * signal - share * share, 0.0)) / WIDTH


@njit(inline="always")
def levels(p_A: Any, truth: Any, signal: Any, share: Any, level_A1: Any) -> None:
    """The x without its noise, of every answer and of unparseable responses, last.

    Args:
        p_A: answer probabilities.
        truth: the true answer.
        signal: s.
        share: h.
        level_A1: output.
    """
    for a in range(level_A1.shape[0]):
        level_A1[a] = signal if a == truth else -signal
    if share > 0:
        _add_share(p_A, share, level_A1)
        farthest = _FARTHEST - MOST * WIDTH * noise_of(signal, share)
        for a in range(level_A1.shape[0]):
            level_A1[a] = min(max(level_A1[a], -farthest), farthest)


@njit
def _add_share(p_A: Floats, share: float, level_A1: Floats) -> None:
    """`share` times the log-probabilities minus their mean over their standard deviation."""
    A = p_A.shape[0]
    mean, square = 0.0, 0.0
    log_A = np.empty(A)
    for a in range(A):
        log_A[a] = np.log(max(p_A[a], _LEAST))
        mean += log_A[a] / A
    for a in range(A):
        log_A[a] -= mean
        square += log_A[a] * log_A[a] / A
    if square > 1e-18:
        for a in range(A):
            level_A1[a] += share / np.sqrt(square) * log_A[a]
