"""`EvolRL.pay`, summed over every answer's responses, compiled.

With the similarities of `sim.world.observe.similarity`, s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i +
u_j),
the novelty of an answer's responses falls on one line in u, but for the one with the largest u,
which does not meet itself. So all follows from number, sum, squares, least and two largest u of
every answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.advantages import STD_FLOOR
from sim.world.observe.similarity import BASE, EDGE, SAME, SPREAD, STEP, rank
from sim.world.random import ODDNESS, fold, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_EQUAL = 1e-6
"""Novelties that differ by less are equal, as in guard_core."""
_NOTHING = 1e-12
"""Squares of rewards that add up to less are rounding."""
_NONE = -(2**40)
"""Below every u, as a whole number."""
_N, _SUM, _SQUARES, _LEAST, _TOP, _NEXT = range(6)


@njit(cache=True)
def novelty_sums(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    samples_RPA: Ints,
    n_samples: int,
    label_RP: Ints,
    strength: float,
    out_RPA: Floats,
) -> None:
    """Advantages, summed over every answer's trained responses.

    The responses stand in the order of `sim.world.observe.responses.expand`.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        samples_RPA: trained responses per answer.
        n_samples: K.
        label_RP: answer ids, -1 for none.
        strength: b.
        out_RPA: output.
    """
    R, P, A = samples_RPA.shape
    # Of the answers that were given, side by side.
    answer_L, of_L6 = np.empty(A + 1, np.int64), np.empty((A + 1, 6))
    usual_L, top_L, low_L, high_L, own_L, square_L = (
        np.empty(A),
        np.empty(A),
        np.empty(A),
        np.empty(A),
        np.empty(A),
        np.empty(A),
    )
    rank_K = np.empty(n_samples, np.int64)
    same = SAME * strength
    for r in range(R):
        key = stream(seed, first + r, ODDNESS, epoch)
        for p in range(P):
            leaf, label = fold(key, problems_RP[r, p]), label_RP[r, p]
            for k in range(n_samples):
                rank_K[k] = rank(leaf, k)
            n_live, of_label, first_u, second_u, u_sum = _read(
                samples_RPA, r, p, label, rank_K, answer_L, of_L6
            )
            n = 0
            for a in range(A):
                n += samples_RPA[r, p, a]
            total, square = n - n_samples, n_samples - n  # unparseable ones get -1
            won, won_sum = 0.0, 0.0
            if of_label >= 0:
                won, won_sum = of_L6[of_label, _N], of_L6[of_label, _SUM]
            lost, lost_sum = n - won, u_sum - won_sum
            per_won, per_lost = 1 / max(won - 1, 1.0), 1 / max(lost - 1, 1.0)
            low, high = np.inf, -np.inf
            for live in range(n_live):
                wins = live == of_label
                per, of_side = (per_won, won_sum) if wins else (per_lost, lost_sum)
                own, u = of_L6[live, _N], of_L6[live, _TOP]
                mean = BASE + (same * (own - 1) + SPREAD * of_side) * per
                # All others count, those with the same answer twice: without the bonus they lose.
                most = max(same + SPREAD * u, SPREAD * first_u)
                other = second_u if u == first_u else first_u
                alone = max(same + SPREAD * of_L6[live, _NEXT], SPREAD * other)
                alone = max(BASE + SPREAD * u + alone, 0.0)
                usual = 1 - (mean + BASE + most) / 2
                at_top = 1 - (mean + SPREAD * (1 - per) * u + alone) / 2
                fall, several = SPREAD * (2 - per) / 2, own > 1
                least = usual - fall * (of_L6[live, _NEXT] if several else -1e9)
                least = min(least, at_top)
                most = usual - fall * (of_L6[live, _LEAST] if several else 1e9)
                most = max(most, at_top)
                usual_L[live], top_L[live], low_L[live], high_L[live] = usual, at_top, least, most
                low, high = low if wins else min(low, least), high if wins else max(high, most)
            half_lost = _half(low, high) if lost > 1 else 0.0
            half_won, low_won = 0.0, 0.0
            if won > 1:
                half_won, low_won = _half(low_L[of_label], high_L[of_label]), low_L[of_label]
            # Where all are equal they scale to the middle; a lone one is set apart.
            base_lost = -0.5 if lost == 1 else -1.0 if half_lost else -0.75
            base_won = 1.0 if won == 1 else 0.5 if half_won else 0.75
            low = low if lost > 1 else 0.0
            for live in range(n_live):
                wins, own, u = live == of_label, of_L6[live, _N], of_L6[live, _TOP]
                half, base = (half_won, base_won) if wins else (half_lost, base_lost)
                start, per = (low_won, per_won) if wins else (low, per_lost)
                fall = half * SPREAD * (2 - per) / 2
                usual, top = (
                    base + half * (usual_L[live] - start),
                    base + half * (top_L[live] - start),
                )
                others, u_others = own - 1, of_L6[live, _SUM] - u
                squares = of_L6[live, _SQUARES] - u * u
                own_L[live] = others * usual - fall * u_others + top
                square_L[live] = others * usual * usual + top * top
                square_L[live] -= fall * (2 * usual * u_others - fall * squares)
            for live in range(n_live):
                total, square = total + own_L[live], square + square_L[live]
            spread, mean = square - total * total / n_samples, total / n_samples
            scale = 1 / (np.sqrt(max(spread, 0.0) / max(n_samples - 1, 1)) + STD_FLOOR)
            scale = scale if spread > _NOTHING else 0.0
            for a in range(A):
                out_RPA[r, p, a] = 0.0
            for live in range(n_live):
                out_RPA[r, p, answer_L[live]] = scale * (own_L[live] - of_L6[live, _N] * mean)


@njit(inline="always")
def _half(low: Any, high: Any) -> Any:
    """Half of one over the width, 0 where there is none."""
    return 0.5 / (high - low) if high - low > _EQUAL else 0.0


@njit(inline="always")
def _read(
    samples_RPA: Any, r: Any, p: Any, label: Any, rank_K: Any, answer_L: Any, of_L6: Any
) -> Any:
    """What is known of the u of every answer that was given.

    Returns:
        Number of given answers, place of the label among them or -1, the two largest u of all, and
        the sum of all.
    """
    live, of_label = 0, -1
    # Without a branch, since which answers are missing cannot be foretold.
    for a in range(samples_RPA.shape[2]):
        n = samples_RPA[r, p, a]
        answer_L[live], of_L6[live, _N] = a, n
        of_label = live if a == label and n > 0 else of_label
        live += n > 0
    first, second, stop, u_sum = _NONE, _NONE, 0, 0
    for given in range(live):
        start, stop = stop, stop + samples_RPA[r, p, answer_L[given]]
        total, squares, least, top, after = 0, 0, -_NONE, _NONE, _NONE
        for k in range(start, stop):
            one = rank_K[k]
            total, squares, least = total + one, squares + one * one, min(least, one)
            top, after = max(top, one), max(after, min(top, one))
        n, u_sum = stop - start, u_sum + total
        of_L6[given, _SUM] = STEP * total - n * EDGE
        of_L6[given, _SQUARES] = STEP * (STEP * squares - 2 * EDGE * total) + n * EDGE * EDGE
        of_L6[given, _LEAST], of_L6[given, _TOP] = STEP * least - EDGE, STEP * top - EDGE
        of_L6[given, _NEXT] = STEP * after - EDGE
        second, first = max(second, after, min(first, top)), max(first, top)
    return live, of_label, STEP * first - EDGE, STEP * second - EDGE, STEP * u_sum - stop * EDGE
