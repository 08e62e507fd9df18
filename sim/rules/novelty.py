"""EVOL-RL's novelties in time proportional to the responses, not to their pairs.

With the similarities of `sim.world.observe.similarity`, s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i +
u_j), a response's mean similarity to its side follows from sums, and its largest similarity from
the largest u among all others and among those with its own answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.observe.similarity import BASE, SAME, SPREAD

Floats = NDArray[np.float64]

_NONE = -4.0
"""Below every u."""


@njit(cache=True, nogil=True)
def novelties(
    answers_RPK: NDArray[np.int32],
    label_RP: NDArray[Any],
    ordinary_RPK: Floats,
    strength: float,
    out_RPK: Floats,
) -> None:
    """Compute 1 - (mean similarity to the same side + largest similarity to all others) / 2.

    Args:
        answers_RPK: trained responses, equal answers next to each other; -1 unparseable, last.
        label_RP: answer of the majority's side.
        ordinary_RPK: u of every response.
        strength: b, at least 0.
        out_RPK: output; 0 for unparseable responses.
    """
    R, P, K = answers_RPK.shape
    for r in range(R):
        for p in range(P):
            answer_K, u_K, out_K = answers_RPK[r, p], ordinary_RPK[r, p], out_RPK[r, p]
            out_K[:] = 0.0
            n_parsed, n_wins, won, lost, first, second = 0, 0, 0.0, 0.0, _NONE, _NONE
            while n_parsed < K and answer_K[n_parsed] >= 0:
                u, wins = u_K[n_parsed], answer_K[n_parsed] == label_RP[r, p]
                n_parsed, n_wins = n_parsed + 1, n_wins + wins
                won, lost = won + (u if wins else 0.0), lost + (0.0 if wins else u)
                second, first = max(second, min(first, u)), max(first, u)
            start = 0
            while start < n_parsed:
                stop, top, after = start, _NONE, _NONE
                while stop < n_parsed and answer_K[stop] == answer_K[start]:
                    after, top = max(after, min(top, u_K[stop])), max(top, u_K[stop])
                    stop += 1
                wins = answer_K[start] == label_RP[r, p]
                n_side = n_wins if wins else n_parsed - n_wins
                u_side = won if wins else lost
                alike = SAME * strength * (stop - start - 1)
                for k in range(start, stop):
                    u, mean, most = u_K[k], 0.0, 0.0
                    if n_side > 1:
                        mean = BASE + SPREAD * u + (alike + SPREAD * (u_side - u)) / (n_side - 1)
                    if n_parsed > 1:
                        most = SPREAD * (second if u == first else first)
                        if stop - start > 1:
                            own = SPREAD * (after if u == top else top)
                            most = max(most, SAME * strength + own)
                        most += BASE + SPREAD * u
                    out_K[k] = 1 - (mean + most) / 2
                start = stop
