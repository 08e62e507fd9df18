"""The gradient of one problem's sampled leaves, in its edges' log-probabilities and the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.measured.tree import Tree, Weights, own_features, start_log_probs, turning

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLIP_LOW, CLIP_HIGH = 0.2, 0.2
"""The trainer's clip of the probability ratio."""
_MOST_GAP = 20.0
"""The trainer's bound on the difference of log-probabilities, beyond which KL has no gradient."""


@njit(cache=True, nogil=True)
def push(
    tree: Tree,
    problem: int,
    leaves_L: Ints,
    advantage_B: Floats,
    ratio_E: Floats,
    out_E: Floats,
) -> None:
    """Add one stream's clipped surrogate gradient in the edges' log-probabilities to `out_E`."""
    first, last = tree.leaf_start[problem], tree.leaf_start[problem + 1]
    B = advantage_B.shape[0]
    for leaf in range(first, last):
        advantage = leaves_L[leaf - first] * advantage_B[tree.leaf_answer[leaf] % B]
        if advantage == 0.0:
            continue
        for k in range(tree.path_start[leaf], tree.path_start[leaf + 1]):
            e = tree.path_edge[k]
            ratio = ratio_E[e]
            if (advantage > 0 and ratio <= 1 + CLIP_HIGH) or (
                advantage < 0 and ratio >= 1 - CLIP_LOW
            ):
                out_E[e] += advantage * ratio


@njit(cache=True, nogil=True)
def push_to_start(
    tree: Tree, problem: int, leaves_L: Ints, kl_coef: float, log_p_E: Floats, out_E: Floats
) -> None:
    """Subtract the gradient of the KL penalty to the start model from `out_E`.

    As in the trainer, every sampled token costs `kl_coef` times k3 = exp(d) - 1 - d with
    d = log p_0 - log p (Schulman's estimate of KL(p || p_0)), whatever the problem's weight is. Its
    derivative in log p is 1 - exp(d).

    Args:
        tree: all trees.
        problem: its number.
        leaves_L: samples per leaf.
        kl_coef: factor on the penalty.
        log_p_E: log-probabilities of the edges now.
        out_E: changed.
    """
    first, last = tree.leaf_start[problem], tree.leaf_start[problem + 1]
    start_E = np.empty(log_p_E.shape[0])
    start_log_probs(tree, problem, start_E)
    for leaf in range(first, last):
        if leaves_L[leaf - first] == 0:
            continue
        for k in range(tree.path_start[leaf], tree.path_start[leaf + 1]):
            e = tree.path_edge[k]
            gap = start_E[e] - log_p_E[e]
            if abs(gap) < _MOST_GAP:
                out_E[e] += kl_coef * leaves_L[leaf - first] * np.expm1(gap)


@njit(cache=True, nogil=True, fastmath=True)
def add(factor: Any, vector: Any, out: Any) -> None:
    """Add a multiple of a vector to `out`."""
    for i in range(out.shape[0]):
        out[i] += factor * vector[i]


@njit(cache=True, nogil=True)
def to_weights(
    tree: Tree,
    at: Weights,
    problem: int,
    push_E: Floats,
    log_p_E: Floats,
    out_D: Floats,
) -> None:
    """Add the gradient in the weights of one problem's push on its edges to `out_D`."""
    first, last = tree.edge_start[problem], tree.edge_start[problem + 1]
    directions_K = np.zeros(at.u.shape[0])
    e = first
    while e < last:
        stop, total = e, 0.0
        while stop < last and tree.edge_node[stop] == tree.edge_node[e]:
            total += push_E[stop - first]
            stop += 1
        for k in range(e, stop):
            pull = push_E[k - first] - total * np.exp(log_p_E[k - first])
            if pull != 0.0:
                add(pull, own_features(at, k), out_D)
                add(pull, at.curvature[k], directions_K)
        e = stop
    if directions_K.shape[0] > 0:
        turned = turning(at)
        for k in range(directions_K.shape[0]):
            add(turned * directions_K[k], at.basis[k], out_D)
