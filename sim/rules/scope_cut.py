"""`scope_sizes.choose_cut`, compiled: which size of subgroups pays."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit
def choose_cut(reward_S: Floats, diversity_S: Floats, balance: float) -> int:
    """Of the sizes that no other beats, the first of the nearest to certain and diverse labels.

    Args:
        reward_S: mean reward of the batch.
        diversity_S: mean number of distinct labels.
        balance: how much the reward counts beside the diversity.
    """
    n_sizes = reward_S.shape[0]
    front_S = np.ones(n_sizes, np.bool_)
    for s in range(n_sizes):
        for t in range(n_sizes):
            not_less = reward_S[t] >= reward_S[s] and diversity_S[t] >= diversity_S[s]
            more = reward_S[t] > reward_S[s] or diversity_S[t] > diversity_S[s]
            if not_less and more:
                front_S[s] = False
    R_S, D_S = _scaled(reward_S, front_S), _scaled(diversity_S, front_S)
    best, least = 0, 2.0
    for s in range(n_sizes):
        away = balance * (1 - R_S[s]) ** 2 + (1 - balance) * (1 - D_S[s]) ** 2
        if front_S[s] and away < least:
            best, least = s, away
    return best


@njit
def _scaled(values_S: Floats, front_S: NDArray[np.bool_]) -> Floats:
    high = values_S.max()
    low = high
    for s in range(values_S.shape[0]):
        if front_S[s]:
            low = min(low, values_S[s])
    width = high - low
    return (values_S - low) / width if width > 0 else np.ones_like(values_S)
