"""The guard's state as compiled code reads and changes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
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
    flips_RNW: NDArray[np.integer[Any]]
    match_rates_RNW: NDArray[np.float64]
    memory_RNA: NDArray[np.float64]

    @classmethod
    def of(cls, state: GuardState) -> State:
        """A copy of the guard's own state."""
        facts_RN = np.empty(state.label.shape, _FACTS)
        for name in _FACTS.names or ():
            facts_RN[name] = getattr(state, name)
        histories = (np.array(a) for a in (state.flips, state.match_rates, state.memory))
        return cls(facts_RN, *histories)
