"""The optimizer steps of one batch: AdamW on the clipped GRPO gradient of sampled leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sim.world.optimizer import BETA_1, BETA_2, EPS
from sim.world.sampling import LEAVES, Bools, Floats, Ints, fold, stream, unit
from sim.world.tree import (
    TokenTree,
    Weights,
    dot,
    edge_log_probs,
    largest,
    leaf_probs,
    on_all_weights,
    own_features,
    start_log_probs,
    turning,
)

CLIP_LOW, CLIP_HIGH = 0.2, 0.2
"""The trainer's clip of the probability ratio."""
_MOST_GAP = 20.0
"""The trainer's bound on the difference of log-probabilities, beyond which KL has no gradient."""


@njit(cache=True, nogil=True)
def push(
    tree: TokenTree,
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
            clipped = ratio > 1 + CLIP_HIGH if advantage > 0 else ratio < 1 - CLIP_LOW
            if not clipped:
                out_E[e] += advantage * ratio


@njit(cache=True, nogil=True)
def push_to_start(
    tree: TokenTree, problem: int, leaves_L: Ints, kl_coef: float, log_p_E: Floats, out_E: Floats
) -> None:
    """Subtract the gradient of the KL penalty to the start model from `out_E`.

    As in the trainer, every sampled token costs `kl_coef` times k3 = exp(d) - 1 - d with
    d = log p_0 - log p (Schulman's estimate of KL(p || p_0)), whatever the problem's weight is. Its
    derivative in log p is 1 - exp(d).
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
    tree: TokenTree, at: Weights, problem: int, push_E: Floats, log_p_E: Floats, out_D: Floats
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


WEIGHT_DECAY = 0.01
"""The trainer's weight decay."""
MAX_GRAD_NORM = 1.0
"""The trainer's bound on the gradient's norm."""


class Adam(NamedTuple):
    """Settings of the optimizer and of the loss."""

    max_norm: float
    mini_batch: int
    kl_coef: float = 0.0
    average: float = 0.0
    """Decay of the weights' moving average per step."""


class TrainedBatch(NamedTuple):
    """P visits of one replicate, in visiting order."""

    problems_P: Ints
    rates_P: Floats
    """Learning rate of the step that each problem belongs to."""
    samples_PB: Ints
    """Trained samples per answer, the last place for unparseable ones."""
    streams_SPB: Floats
    """Weighted advantages per answer, one stream each for majority and minority."""
    drop_P: Bools
    """Problems that left the batch."""


@njit(cache=True, nogil=True)
def rows_of(batch: TrainedBatch, first: int, last: int) -> TrainedBatch:
    """Return the visits `first..last`."""
    at = slice(first, last)
    visits = (batch.problems_P[at], batch.rates_P[at], batch.samples_PB[at])
    return TrainedBatch(*visits, batch.streams_SPB[:, at], batch.drop_P[at])


@njit(cache=True, nogil=True)
def leaf_key(seed: int, replicate: int, epoch: int) -> Any:
    """The key of the random numbers that choose a batch's leaves."""
    return stream(seed, replicate, LEAVES, epoch)


@njit(cache=True, nogil=True)
def draw_leaves(
    tree: TokenTree, leaf_p: Floats, problem: int, samples_B: Ints, key: Any, out_L: Ints
) -> int:
    """Draw a leaf for every trained sample, given its answer; returns the samples' tokens."""
    first, last = tree.leaf_start[problem], tree.leaf_start[problem + 1]
    B = samples_B.shape[0]
    out_L[: last - first] = 0
    tokens, draw = 0, 0
    for b in range(B):
        if samples_B[b] == 0:
            continue
        mass = 0.0
        for leaf in range(first, last):
            if tree.leaf_answer[leaf] % B == b:
                mass += leaf_p[leaf - first]
        for _ in range(samples_B[b]):
            bound = unit(key, draw) * mass
            draw += 1
            chosen = -1
            for leaf in range(first, last):
                if tree.leaf_answer[leaf] % B == b:
                    chosen = leaf
                    bound -= leaf_p[leaf - first]
                    if bound < 0.0:
                        break
            out_L[chosen - first] += 1
            tokens += tree.leaf_length[chosen]
    return tokens


@njit(cache=True, nogil=True)
def take_in(at: Weights, gradient_D: Floats, adam: Adam) -> None:
    """Clip a gradient in place and add it to Adam's mean squared gradient."""
    norm = np.sqrt(np.sum(at.scale * (gradient_D * gradient_D)))
    gradient_D *= min(1.0, adam.max_norm / (norm + 1e-6))
    share = 1.0 - BETA_2
    at.second_moment[:] = BETA_2 * at.second_moment + share * gradient_D * gradient_D


@njit(cache=True, nogil=True)
def move(at: Weights, gradient_D: Floats, rate: float, adam: Adam, t: int) -> float:
    """Move the weights by a clipped gradient; returns the norm of the change on all weights."""
    turned = turning(at)
    rise_1, rise_2 = 1.0 - BETA_1**t, 1.0 - BETA_2**t
    at.first_moment[:] = BETA_1 * at.first_moment + (1.0 - BETA_1) * gradient_D
    pull_D = at.first_moment / rise_1 / (np.sqrt(at.second_moment / rise_2) + EPS)
    shift_D = rate * (pull_D - WEIGHT_DECAY * (at.start + at.w))
    at.w[:] += shift_D
    change_D = at.scale * shift_D
    norm = np.sqrt(np.sum(change_D * shift_D))
    moved_D = on_all_weights(at, at.w)
    if at.bfloat16:
        change_D[:] = moved_D - at.moved
    at.moved[:] = moved_D
    for k in range(at.u.shape[0]):
        at.u[k] += turned * dot(at.basis[k], change_D)
    return norm


@njit(cache=True, nogil=True)
def train_batch(
    tree: TokenTree,
    at: Weights,
    adam: Adam,
    taken: int,
    batch: TrainedBatch,
    key: Any,
    norm_P: Floats,
) -> int:
    """Take the optimizer steps of one batch of one replicate; returns the steps taken until now.

    `norm_P` is the norm of the change of the step that each problem belongs to.
    """
    P = batch.problems_P.shape[0]
    most_edges, most_leaves = largest(tree, batch.problems_P)
    before_PE, leaves_PL = np.empty((P, most_edges)), np.empty((P, most_leaves), np.int64)
    tokens_P = draw_batch(tree, at, batch, key, before_PE, leaves_PL)
    gradient_D = np.empty(at.w.shape[0])
    for first in range(0, P, adam.mini_batch):
        last = min(first + adam.mini_batch, P)
        norm_P[first:last] = 0.0
        tokens = tokens_P[first:last].sum()
        rows, drawn = rows_of(batch, first, last), (before_PE[first:last], leaves_PL[first:last])
        if not add_gradients(tree, at, adam.kl_coef, rows, *drawn, gradient_D):
            norm_P[first:last] = np.nan
            return taken
        if tokens == 0:
            continue
        gradient_D /= tokens
        taken += 1
        take_in(at, gradient_D, adam)
        norm_P[first:last] = move(at, gradient_D, batch.rates_P[first], adam, taken)
        if adam.average > 0.0:
            for mean, now in ((at.mean_w, at.w), (at.mean_u, at.u)):
                mean += (1.0 - adam.average) * (now - mean)
    return taken


@njit(cache=True, nogil=True)
def draw_batch(
    tree: TokenTree, at: Weights, batch: TrainedBatch, key: Any, before_PE: Floats, leaves_PL: Ints
) -> Ints:
    """Draw samples per leaf; returns each problem's tokens, 0 where dropped.

    `before_PE` takes the log-probabilities of the edges before the batch.
    """
    P = batch.problems_P.shape[0]
    leaf_p, tokens_P = np.empty(leaves_PL.shape[1]), np.zeros(P, np.int64)
    for p in range(P):
        if not batch.drop_P[p]:
            n = batch.problems_P[p]
            edge_log_probs(tree, at, n, before_PE[p])
            leaf_probs(tree, before_PE[p], n, leaf_p)
            samples_B, key_n = batch.samples_PB[p], fold(key, n)
            tokens_P[p] = draw_leaves(tree, leaf_p, n, samples_B, key_n, leaves_PL[p])
    return tokens_P


@njit(cache=True, nogil=True)
def add_gradients(
    tree: TokenTree,
    at: Weights,
    kl_coef: float,
    batch: TrainedBatch,
    before_PE: Floats,
    leaves_PL: Ints,
    out_D: Floats,
) -> bool:
    """Write the summed gradient of one optimizer step; returns False if a logit is not finite."""
    edges = before_PE.shape[1]
    now_E, ratio_E, push_E = np.empty(edges), np.empty(edges), np.empty(edges)
    out_D[:] = 0.0
    for p in range(batch.problems_P.shape[0]):
        if batch.drop_P[p]:
            continue
        n = batch.problems_P[p]
        n_edges = edge_log_probs(tree, at, n, now_E)
        if n_edges < 0:
            return False
        for e in range(n_edges):
            ratio_E[e] = np.exp(min(max(now_E[e] - before_PE[p, e], -20.0), 20.0))
        push_E[:] = 0.0
        for s in range(batch.streams_SPB.shape[0]):
            push(tree, n, leaves_PL[p], batch.streams_SPB[s, p], ratio_E, push_E)
        if kl_coef > 0:
            push_to_start(tree, n, leaves_PL[p], kl_coef, now_E, push_E)
        to_weights(tree, at, n, push_E, now_E, out_D)
    return True
