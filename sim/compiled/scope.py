"""`Scope.pay`, compiled: labels of 2 V - 1 subgroups per problem instead of one.

guard_core sorts V numbers per subgroup. All that is needed is which of them are the n smallest,
and numbers that are uniform are nearly sorted by what they are: they are counted into V pieces of
[0, 1), and only the piece in which the n-th falls is looked at closely.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.random import RULE, fold, stream, unit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True)
def subgroup_rewards(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    answers_RPV: NDArray[np.int32],
    weights_RPV: Floats,
    prior_RPA: Floats,
    sizes_S: Ints,
    n_drawn: int,
    balance: float,
    out_RPK: Floats,
) -> None:
    """Rewards of the K trained responses.

    Args:
        seed: of the run.
        first: number of the first replicate.
        epoch: of the visit.
        problems_RP: the batch.
        answers_RPV: answers of all responses, -1 for unparseable.
        weights_RPV: their confidences, at least 0.
        prior_RPA: remembered scores times the share that is drawn; all 0 without memory.
        sizes_S: sizes of subgroups.
        n_drawn: responses that a subgroup's label is drawn from.
        balance: how much the reward counts beside the diversity.
        out_RPK: output.
    """
    R, P, V = answers_RPV.shape
    n_sizes = sizes_S.shape[0]
    paid_SPV = np.empty((n_sizes, P, V), np.bool_)
    reward_S, diversity_S = np.empty(n_sizes), np.empty(n_sizes)
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        reward_S[:], diversity_S[:] = 0.0, 0.0
        for p in range(P):
            _cut_all(
                fold(key, problems_RP[r, p]),
                answers_RPV[r, p],
                weights_RPV[r, p],
                prior_RPA[r, p],
                sizes_S,
                n_drawn,
                paid_SPV[:, p],
                reward_S,
                diversity_S,
            )
        best = _choose(reward_S / (P * V), diversity_S / P, balance)
        for p in range(P):
            for k in range(out_RPK.shape[2]):
                out_RPK[r, p, k] = 1.0 if paid_SPV[best, p, k] else 0.0


@njit
def _cut_all(
    leaf: np.uint64,
    answers_V: NDArray[np.int32],
    weights_V: Floats,
    prior_A: Floats,
    sizes_S: Ints,
    n_drawn: int,
    paid_SV: NDArray[np.bool_],
    reward_S: Floats,
    diversity_S: Floats,
) -> None:
    """Cut one problem's responses into subgroups of every size; rewards and labels are counted."""
    V, A = answers_V.shape[0], prior_A.shape[0]
    draws_V, score_A, met_A = np.empty(V), np.empty(A), np.empty(A, np.bool_)
    near_V, n_V = np.empty(V), np.empty(V, np.int64)
    draw = 0
    for s in range(sizes_S.shape[0]):
        size = sizes_S[s]
        met_A[:] = False
        for group in range(V // size):
            for v in range(V):
                draws_V[v] = unit(leaf, draw + v)
            draw += V
            bound = _bound(draws_V, n_drawn, n_V, near_V)
            score_A[:] = 0.0
            for v in range(V):
                if draws_V[v] <= bound and answers_V[v] >= 0:
                    score_A[answers_V[v]] += weights_V[v]
            label, top = -2, 0.0
            for a in range(A):
                score = score_A[a] + prior_A[a]
                if score > top:
                    label, top = a, score
            for v in range(group * size, (group + 1) * size):
                paid_SV[s, v] = answers_V[v] == label
                reward_S[s] += paid_SV[s, v]
            if label >= 0:
                diversity_S[s] += not met_A[label]
                met_A[label] = True


@njit
def _bound(draws_V: Floats, n: int, n_V: Ints, near_V: Floats) -> float:
    """The n-th smallest of uniform numbers."""
    V = draws_V.shape[0]
    n_V[:] = 0
    for v in range(V):
        n_V[int(draws_V[v] * V)] += 1
    piece, below = 0, 0
    while below + n_V[piece] < n:
        below += n_V[piece]
        piece += 1
    found = 0
    for v in range(V):
        if int(draws_V[v] * V) == piece:
            place = found
            while place > 0 and near_V[place - 1] > draws_V[v]:
                near_V[place] = near_V[place - 1]
                place -= 1
            near_V[place] = draws_V[v]
            found += 1
    return near_V[n - below - 1]


@njit
def _choose(reward_S: Floats, diversity_S: Floats, balance: float) -> int:
    """`scope_sizes.choose_cut`: of the sizes that no other beats, the first of the nearest."""
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
