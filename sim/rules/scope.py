"""`Scope.pay`, compiled: labels of 2 V - 1 subgroups per problem instead of one.

An answer's confidence in a subset is looked up, eight responses at a time. Where one answer wins in
whatever subset, none is drawn.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.rules.bits import size_of, span_in
from sim.rules.paid import two_valued_sums
from sim.rules.scope_cut import choose_cut
from sim.rules.subsets import Subsets, draw_subsets
from sim.world.random import LANES, RULE, fold, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_BYTE = 8


@njit(cache=True)
def subgroup_sums(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    answers_RPV: NDArray[np.int32],
    weights_RPV: Floats,
    prior_RPA: Floats,
    sizes_S: Ints,
    n_drawn: int,
    of: Subsets,
    balance: float,
    n_samples: int,
    samples_RPA: Ints,
    out_RPA: Floats,
) -> None:
    """Advantages, summed over every answer's trained responses.

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
        of: room for all subgroups' subsets.
        balance: how much the reward counts beside the diversity.
        n_samples: K.
        samples_RPA: trained responses per answer.
        out_RPA: output.
    """
    R, P, V = answers_RPV.shape
    A, n_sizes, W = prior_RPA.shape[2], sizes_S.shape[0], -(-V // LANES)
    paid_SPW = np.empty((n_sizes, P, W), np.uint64)
    reward_S, diversity_S = np.empty(n_sizes), np.empty(n_sizes)
    label_G = np.empty(of.need_G.shape[0], np.int64)
    member_AW, n_A = np.empty((A, W), np.uint64), np.empty(A, np.int64)
    sums_B256 = np.zeros((-(-V // _BYTE), 256))
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        reward_S[:], diversity_S[:] = 0.0, 0.0
        for p in range(P):
            _members(answers_RPV[r, p], member_AW, n_A)
            sure = _sure_label(answers_RPV[r, p], weights_RPV[r, p], prior_RPA[r, p], n_A, n_drawn)
            if sure >= 0:
                for s in range(n_sizes):
                    paid_SPW[s, p] = member_AW[sure]
                    reward_S[s] += n_A[sure]
                    diversity_S[s] += 1
                continue
            _sum_bytes(weights_RPV[r, p], sums_B256)
            _cut_all(
                fold(key, problems_RP[r, p]),
                V,
                member_AW,
                sums_B256,
                prior_RPA[r, p],
                sizes_S,
                n_drawn,
                of,
                label_G,
                paid_SPW[:, p],
                reward_S,
                diversity_S,
            )
        best = choose_cut(reward_S / (P * V), diversity_S / P, balance)
        for p in range(P):
            _members(answers_RPV[r, p, :n_samples], member_AW, n_A)
            all_hits = 0
            for a in range(A):
                n_A[a] = 0
                for w in range(W):
                    n_A[a] += size_of(member_AW[a, w] & paid_SPW[best, p, w])
                all_hits += n_A[a]
            two_valued_sums(samples_RPA[r, p], n_samples, n_A, all_hits, out_RPA[r, p])


@njit
def _members(answers_V: NDArray[np.int32], member_AW: Words, n_A: Ints) -> None:
    """Which responses, and how many, give each answer."""
    member_AW[:], n_A[:] = np.uint64(0), 0
    for v in range(answers_V.shape[0]):
        a = answers_V[v]
        if a >= 0:
            member_AW[a, v // LANES] |= np.uint64(1) << np.uint64(v % LANES)
            n_A[a] += 1


@njit
def _sure_label(
    answers_V: NDArray[np.int32], weights_V: Floats, prior_A: Floats, n_A: Ints, n_drawn: int
) -> int:
    """The answer that wins in whatever subset; -1 if that is not plain."""
    V, A = answers_V.shape[0], n_A.shape[0]
    top = 0
    for a in range(A):
        top = a if n_A[a] > n_A[top] else top
    fewest = n_A[top] - (V - n_drawn)
    if fewest <= 0:
        return -1
    least, most_A = np.inf, prior_A.copy()
    for v in range(V):
        a = answers_V[v]
        if a == top:
            least = min(least, weights_V[v])
        elif a >= 0:
            most_A[a] += weights_V[v]
    score = prior_A[top] + fewest * least
    for a in range(A):
        if a != top and most_A[a] >= score:
            return -1
    return top if score > 0 else -1


@njit
def _sum_bytes(weights_V: Floats, sums_B256: Floats) -> None:
    """What the members of every set of eight neighbours weigh together."""
    V = weights_V.shape[0]
    for b in range(sums_B256.shape[0]):
        for k in range(_BYTE):
            v = b * _BYTE + k
            one = weights_V[v] if v < V else 0.0
            for others in range(1 << k):
                sums_B256[b, (1 << k) + others] = sums_B256[b, others] + one


@njit
def _cut_all(
    leaf: np.uint64,
    V: int,
    member_AW: Words,
    sums_B256: Floats,
    prior_A: Floats,
    sizes_S: Ints,
    n_drawn: int,
    of: Subsets,
    label_G: Ints,
    paid_SW: Words,
    reward_S: Floats,
    diversity_S: Floats,
) -> None:
    """Cut one problem's responses into subgroups of every size; rewards and labels are counted."""
    draw_subsets(leaf, V, n_drawn, of)
    _label(of.drawn_WG, member_AW, sums_B256, prior_A, label_G)
    met_A, g = np.empty(member_AW.shape[0], np.bool_), 0
    for s in range(sizes_S.shape[0]):
        size = sizes_S[s]
        met_A[:], paid_SW[s] = False, np.uint64(0)
        for start in range(0, V, size):
            label = label_G[g]
            g += 1
            if label < 0:
                continue
            diversity_S[s] += not met_A[label]
            met_A[label] = True
            for w in range(start // LANES, (start + size - 1) // LANES + 1):
                paid = member_AW[label, w] & span_in(w, start, start + size)
                paid_SW[s, w] |= paid
                reward_S[s] += size_of(paid)


@njit
def _label(
    drawn_WG: Words, member_AW: Words, sums_B256: Floats, prior_A: Floats, label_G: Ints
) -> None:
    """The answer of every subset with most confidence above 0, the first of equals, or -2."""
    G = drawn_WG.shape[1]
    score_G, top_G = np.empty(G), np.zeros(G)
    label_G[:] = -2
    for a in range(member_AW.shape[0]):
        score_G[:] = prior_A[a]
        met = prior_A[a] > 0
        for b in range(sums_B256.shape[0]):
            shift = np.uint64(_BYTE * (b % _BYTE))
            members = (member_AW[a, b // _BYTE] >> shift) & np.uint64(255)
            if members == np.uint64(0):
                continue
            met = True
            for g in range(G):
                score_G[g] += sums_B256[b, (drawn_WG[b // _BYTE, g] >> shift) & members]
        if not met:
            continue
        for g in range(G):
            higher = score_G[g] > top_G[g]
            label_G[g] = a if higher else label_G[g]
            top_G[g] = score_G[g] if higher else top_G[g]
