"""Rewards of the rules that pay by answer, compiled; guard_core's `pay` is the source of truth.

All write (R, P, A + 1) rewards, the unparseable responses' last.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_EQUAL = 1e-6
"""Entropies, in nats, that differ by less are equal, as in guard_core."""


@njit(cache=True)
def soft_shares(counts_RPA: Ints, out_RPA: Floats) -> None:
    """`SRTSoft.pay`."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            parsed = 0
            for a in range(A):
                parsed += counts_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = counts_RPA[r, p, a] / max(parsed, 1)
            out_RPA[r, p, A] = 0.0


@njit(cache=True)
def agreeing_shares(counts_RPA: Ints, n_votes: int, out_RPA: Floats) -> None:
    """`EMPO.pay` with 0 for the unparseable."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            agrees = False
            for a in range(A):
                agrees |= counts_RPA[r, p, a] > 1
            for a in range(A):
                out_RPA[r, p, a] = counts_RPA[r, p, a] / n_votes if agrees else 0.0
            out_RPA[r, p, A] = 0.0


@njit(cache=True)
def winner_or_none(counts_RPA: Ints, n_votes: int, label_RP: Ints, out_RPA: Floats) -> None:
    """`MMUPT.pay`."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            parsed, top = 0, 0
            for a in range(A):
                parsed += counts_RPA[r, p, a]
                top = max(top, counts_RPA[r, p, a])
            none = n_votes - parsed > top
            for a in range(A):
                out_RPA[r, p, a] = 1.0 if a == label_RP[r, p] and not none else 0.0
            out_RPA[r, p, A] = 1.0 if none else 0.0


@njit(cache=True)
def format_and_match(label_RP: Ints, of_format: float, of_match: float, out_RPA: Floats) -> None:
    """`CoVerRL.pay` with `of_match` 1, `FormatReward.pay` with 0."""
    R, P, width = out_RPA.shape
    for r in range(R):
        for p in range(P):
            for a in range(width - 1):
                out_RPA[r, p, a] = of_format + (of_match if a == label_RP[r, p] else 0.0)
            out_RPA[r, p, width - 1] = 0.0


@njit(cache=True)
def explored(
    counts_RPA: Ints,
    n_votes: int,
    label_RP: Ints,
    agreement: float,
    diversity: float,
    direct_RP: NDArray[np.bool_],
    out_RPA: Floats,
) -> None:
    """`DiSCTT.pay` and `DiSCTT.is_direct`."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            label = label_RP[r, p]
            direct = label >= 0 and counts_RPA[r, p, label] / n_votes >= agreement
            for a in range(A):
                rare = 0.0 if direct else diversity * (1 - counts_RPA[r, p, a] / n_votes)
                out_RPA[r, p, a] = (1.0 if a == label else 0.0) + rare
            out_RPA[r, p, A] = 0.0
            direct_RP[r, p] = direct


@njit(cache=True)
def three_kinds(
    counts_RPA: Ints,
    n_votes: int,
    answers_RPV: NDArray[np.int32],
    entropy_RPV: Floats,
    label_RP: Ints,
    t_pos: float,
    t_margin: float,
    t_low: float,
    entropy_weight: float,
    out_RPA: Floats,
) -> None:
    """`SCRL.pay` where `entropy_weight` is below 0, else `SCRLContinuous.pay` counted from 0.

    Entropies must be finite.
    """
    R, P, A = counts_RPA.shape
    excess_A = np.empty(A)
    for r in range(R):
        for p in range(P):
            label = label_RP[r, p]
            _excess(counts_RPA[r, p], answers_RPV[r, p], entropy_RPV[r, p], excess_A)
            first = counts_RPA[r, p, label] / n_votes if label >= 0 else 0.0
            second = 0.0
            for a in range(A):
                if a != label:
                    second = max(second, counts_RPA[r, p, a] / n_votes)
            leads = first - second > t_margin or second == 0
            clear = first >= t_pos and first > 0 and leads
            for a in range(A):
                share = counts_RPA[r, p, a] / n_votes
                positive = a == label and clear
                negative = not positive and 0 < share < t_low and excess_A[a] >= 0
                if entropy_weight < 0:
                    out_RPA[r, p, a] = 1.0 * positive - 1.0 * negative
                    continue
                paid = share if positive else 0.0
                paid -= (t_low - share) if negative else 0.0
                out_RPA[r, p, a] = paid - entropy_weight * excess_A[a]
            out_RPA[r, p, A] = -1.0


@njit
def _excess(
    counts_A: Ints, answers_V: NDArray[np.int32], entropy_V: Floats, excess_A: Floats
) -> None:
    """Mean entropy of an answer's responses minus that of all V; 0 without any."""
    A, V = counts_A.shape[0], answers_V.shape[0]
    total, v = 0.0, 0
    excess_A[:] = 0.0
    while v < V:
        # Responses of an answer lie side by side, those trained on apart from the others.
        answer, own = answers_V[v], 0.0
        while v < V and answers_V[v] == answer:
            own += entropy_V[v]
            v += 1
        total += own
        if answer >= 0:
            excess_A[answer] += own
    for a in range(A):
        excess_A[a] = excess_A[a] / max(counts_A[a], 1) - (total / V if counts_A[a] > 0 else 0.0)
        if abs(excess_A[a]) <= _EQUAL:
            excess_A[a] = 0.0
