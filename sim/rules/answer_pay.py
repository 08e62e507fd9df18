"""Rewards of the rules that pay by answer, compiled; guard_core's `pay` is the source of truth.

All write (R, P, A + 1) rewards, the unparseable responses' last.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
    excess_RPA: Floats,
    label_RP: Ints,
    t_pos: float,
    t_margin: float,
    t_low: float,
    entropy_weight: float,
    out_RPA: Floats,
) -> None:
    """`SCRL.pay` where `entropy_weight` is below 0, else `SCRLContinuous.pay` counted from 0.

    `excess_RPA` is how much more entropy an answer's responses have than all.
    """
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            label, excess_A = label_RP[r, p], excess_RPA[r, p]
            best, rival = 0, 0
            for a in range(A):
                best = counts_RPA[r, p, a] if a == label else best
                rival = max(rival, 0 if a == label else counts_RPA[r, p, a])
            leads = best / n_votes - rival / n_votes > t_margin or rival == 0
            clear = best / n_votes >= t_pos and best > 0 and leads
            # Numbers in the place of conditions, which nothing could foretell.
            for a in range(A):
                share = counts_RPA[r, p, a] / n_votes
                positive = 1.0 * clear * (a == label)
                rare = 1.0 * (share > 0) * (share < t_low)
                negative = (1 - positive) * rare * (excess_A[a] >= 0)
                if entropy_weight < 0:
                    out_RPA[r, p, a] = positive - negative
                else:
                    paid = positive * share - negative * (t_low - share)
                    out_RPA[r, p, a] = paid - entropy_weight * excess_A[a]
            out_RPA[r, p, A] = -1.0
