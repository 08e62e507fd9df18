"""The guard's state as compiled code reads and changes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import GuardState

_FACTS = np.dtype(
    [
        ("label", np.int32),
        ("visits", np.int32),
        ("c2_fired", np.int32),
        ("steady", np.int32),
        ("had_competition", np.bool_),
        ("mps_active", np.bool_),
    ],
    align=True,
)


class State(NamedTuple):
    """`GuardState` of all problems.

    Compiled functions are given its arrays one by one: numba pickles the classes of its arguments
    into its cache and could not read it any more after one was renamed.
    """

    facts_RN: NDArray[np.void]
    """What is one number per problem, side by side, since a visit needs all of it."""
    flips_RNW: NDArray[np.int8]
    """0 or 1; small, since memory is what a visit waits for."""
    match_rates_RNW: NDArray[np.float64]
    memory_RNA: NDArray[np.float64]

    @classmethod
    def of(cls, state: GuardState) -> State:
        """A copy of the guard's own state."""
        facts_RN = np.empty(state.label.shape, _FACTS)
        for name in _FACTS.names or ():
            facts_RN[name] = getattr(state, name)
        flips_RNW = np.array(state.flips, np.int8)
        return cls(facts_RN, flips_RNW, np.array(state.match_rates), np.array(state.memory))


@njit(cache=True)
def fetch(
    facts_RN: NDArray[np.void],
    flips_RNW: NDArray[np.int8],
    match_rates_RNW: NDArray[np.float64],
    order_RN: NDArray[np.int64],
    start: int,
    stop: int,
) -> float:
    """Read the state of a batch once, so that the processor has it at hand in what follows.

    The problems of a batch lie scattered. This loop, with nothing to decide, waits for many of them
    at once; the guard's own loops would wait for one after the other.

    Args:
        facts_RN: see `State`.
        flips_RNW: the same.
        match_rates_RNW: the same.
        order_RN: problems in visiting order.
        start: place of the batch's first visit in the epoch.
        stop: one past the place of its last.

    Returns:
        A sum that means nothing; without it the compiler would leave the reading out.
    """
    total, last = 0.0, match_rates_RNW.shape[2] - 1
    for r in range(order_RN.shape[0]):
        for at in range(start, stop):
            n = order_RN[r, at]
            total += facts_RN[r, n].label + flips_RNW[r, n, 0]
            total += match_rates_RNW[r, n, 0] + match_rates_RNW[r, n, last]
    return total
