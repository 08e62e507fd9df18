"""The token trees of all problems, a replicate's weights, and the probabilities that they give."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.trace.response import Response
from sim.settings.populations import response_at
from sim.world.sampling import Bools, Floats, Ints

Singles = NDArray[np.float32]

_NEVER = -1e9
"""A log-probability that stays that of 0 whatever is added to it, and finite."""
_DIRECTIONS = 32
"""Gradients that a replicate's directions of curvature are sums of."""


class TokenTree(NamedTuple):
    """The token trees of all problems, for compiled code."""

    edge_start: Ints
    edge_node: Ints
    log_p0: Floats
    leaf_start: Ints
    leaf_answer: Ints
    leaf_length: Ints
    leaf_unseen: Bools
    path_start: Ints
    path_edge: Ints


class Weights(NamedTuple):
    """The trained weights of one replicate and the features on them."""

    features: Singles
    """(E, T) psi on all weights of the file, shared by all replicates."""
    first: int
    """The replicate trains D neighbouring ones of these weights, from this place on."""
    basis: Singles
    """(k, D) gradients that the directions of curvature are sums of."""
    curvature: Singles
    """(E, k) X_e in these directions; k = 0 without curvature."""
    growth: float
    """g, squared change of the gradients per distance, relative to their squared norm."""
    sampling: float
    """s, the part of it that the drawn weights make up for by their error."""
    scale: Singles
    """(D,) the number of the model's weights that each stands for."""
    start: Singles
    """(D,) the weights before training."""
    bfloat16: bool
    """The model reads the weights rounded to bfloat16."""
    w: Floats
    """(D,) their change."""
    moved: Singles
    """(D,) `on_all_weights` of w, which the model reads."""
    u: Floats
    """(k,) integral of `turning` d(basis w)."""
    first_moment: Floats
    """(D,) Adam's mean gradient."""
    second_moment: Floats
    """(D,) Adam's mean squared gradient."""
    mean_w: Floats
    """(D,) moving average of w; empty where none is kept."""
    mean_u: Floats
    """(k,) moving average of u."""

    def averaged(self) -> Weights:
        """Return the weights at their moving average."""
        moved = on_all_weights(self, self.mean_w)
        return self._replace(w=self.mean_w, moved=moved, u=self.mean_u)


def read_measured(path: str, n_problems: int, n_answers: int) -> Response:
    """Read a response file; a `UserError` if it is of another size than the run."""
    response = response_at(path)
    for name, given in (("n_problems", n_problems), ("n_answers", n_answers)):
        if given != (measured := getattr(response, name)):
            raise UserError(f"{name} = {given}: {path} has {measured}; set {name} to {measured}")
    return response


def first_probs(response: Response) -> Floats:
    """Return the answer probabilities (N, A + 1) before training, unparseable in the last place."""
    tree, out_NB = tree_of(response), np.zeros((response.n_problems, response.n_answers + 1))
    edges, leaves = map(np.empty, largest(tree, np.arange(response.n_problems)))
    for n, out_B in enumerate(out_NB):
        start_log_probs(tree, n, edges)
        count, first = leaf_probs(tree, edges, n, leaves), tree.leaf_start[n]
        np.add.at(out_B, tree.leaf_answer[first : first + count], leaves[:count])
    return out_NB


def tree_of(response: Response) -> TokenTree:
    """The tree without its features."""
    return TokenTree(*(np.ascontiguousarray(getattr(response, name)) for name in TokenTree._fields))


def without_unseen(tree: TokenTree) -> TokenTree:
    """The tree whose unseen leaves have no probability, whatever the weights are."""
    log_p0, leaves = tree.log_p0.copy(), np.flatnonzero(tree.leaf_unseen)
    problems = np.searchsorted(tree.leaf_start, leaves, side="right") - 1
    last = tree.path_edge[tree.path_start[leaves + 1] - 1]
    log_p0[tree.edge_start[problems] + last] = _NEVER
    return tree._replace(log_p0=log_p0)


@njit(cache=True, nogil=True, fastmath=True)
def dot(a: Any, b: Any) -> float:
    """Return the inner product of two vectors."""
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@njit(cache=True, nogil=True)
def own_features(at: Weights, edge: int) -> Any:
    """Return the features of an edge on the replicate's weights."""
    # Slices of contiguous rows stay contiguous, which lets the compiler use vector instructions.
    return at.features[edge][at.first : at.first + at.w.shape[0]]


@njit(cache=True, nogil=True)
def bfloat16(x: Any) -> Any:
    """Return numbers with the 8 significant bits that bfloat16 keeps."""
    apart = x * (2.0**45 + 1.0)
    return apart - (apart - x)


@njit(cache=True, nogil=True)
def on_all_weights(at: Weights, w_D: Floats) -> Singles:
    """Return scale * w, w as the model reads it, in the precision of the features."""
    # In bfloat16 a weight stays until its change is half of the gap to the next number.
    read_D = bfloat16(at.start + w_D) - at.start if at.bfloat16 else w_D
    return (at.scale * read_D).astype(np.float32)


@njit(cache=True, nogil=True)
def distance(at: Weights) -> float:
    """|theta - theta_0| on all weights of the model, as it reads them."""
    read_D = (at.moved / at.scale).astype(np.float64) if at.bfloat16 else at.w
    return np.sqrt(max(dot(at.moved, read_D), 0.0))


@njit(cache=True, nogil=True)
def turning(at: Weights) -> float:
    """Return the change of the gradients by curvature relative to their norm."""
    return np.sqrt(max(at.growth * distance(at) - at.sampling, 0.0))


@njit(cache=True, nogil=True)
def edge_log_probs(tree: TokenTree, at: Weights, problem: int, out_E: Floats) -> int:
    """Write log-probabilities of one problem's edges; returns their number, -1 if not finite."""
    first, last = tree.edge_start[problem], tree.edge_start[problem + 1]
    for e in range(first, last):
        z = tree.log_p0[e] + dot(own_features(at, e), at.moved)
        if at.u.shape[0] > 0:
            z += dot(at.curvature[e], at.u)
        if not np.isfinite(z):
            return -1
        out_E[e - first] = z
    normalise(tree, problem, out_E)
    return last - first


@njit(cache=True, nogil=True)
def start_log_probs(tree: TokenTree, problem: int, out_E: Floats) -> None:
    """Write log-probabilities of one problem's edges before training, normalised at each node."""
    first, last = tree.edge_start[problem], tree.edge_start[problem + 1]
    out_E[: last - first] = tree.log_p0[first:last]
    normalise(tree, problem, out_E)


@njit(cache=True, nogil=True)
def normalise(tree: TokenTree, problem: int, out_E: Floats) -> None:
    """Turn logits of one problem's edges into log-probabilities at each node, in place."""
    first, last = tree.edge_start[problem], tree.edge_start[problem + 1]
    e = first
    while e < last:
        stop = e
        while stop < last and tree.edge_node[stop] == tree.edge_node[e]:
            stop += 1
        top = out_E[e - first : stop - first].max()
        total = 0.0
        for k in range(e, stop):
            total += np.exp(out_E[k - first] - top)
        for k in range(e, stop):
            out_E[k - first] -= top + np.log(total)
        e = stop


@njit(cache=True, nogil=True)
def leaf_probs(tree: TokenTree, log_p_E: Floats, problem: int, out_L: Floats) -> int:
    """Write probabilities of one problem's leaves; returns their number."""
    first, last = tree.leaf_start[problem], tree.leaf_start[problem + 1]
    total = 0.0
    for leaf in range(first, last):
        log_p = 0.0
        for k in range(tree.path_start[leaf], tree.path_start[leaf + 1]):
            log_p += log_p_E[tree.path_edge[k]]
        out_L[leaf - first] = np.exp(log_p)
        total += out_L[leaf - first]
    for k in range(last - first):
        out_L[k] /= total
    return last - first


@njit(cache=True, nogil=True)
def batch_probs(
    tree: TokenTree, at: Weights, problems_P: Ints, out_PB: Floats, unseen_P: Floats
) -> None:
    """Write answer probabilities, unparseable last, and those of unseen leaves; NaN if infinite."""
    most_edges, most_leaves = largest(tree, problems_P)
    edges, leaves = np.empty(most_edges), np.empty(most_leaves)
    for p in range(problems_P.shape[0]):
        n = problems_P[p]
        finite = edge_log_probs(tree, at, n, edges) >= 0
        out_PB[p, :] = unseen_P[p] = 0.0 if finite else np.nan
        if not finite:
            continue
        for k in range(leaf_probs(tree, edges, n, leaves)):
            leaf = tree.leaf_start[n] + k
            out_PB[p, tree.leaf_answer[leaf]] += leaves[k]  # -1, unparseable, is the last place
            unseen_P[p] += leaves[k] * tree.leaf_unseen[leaf]


@njit(cache=True, nogil=True)
def largest(tree: TokenTree, problems_P: Ints) -> tuple[int, int]:
    """Return the largest numbers of edges and leaves among some problems."""
    edges, leaves = 0, 0
    for n in problems_P:
        edges = max(edges, int(tree.edge_start[n + 1] - tree.edge_start[n]))
        leaves = max(leaves, int(tree.leaf_start[n + 1] - tree.leaf_start[n]))
    return edges, leaves


def draw_weights(
    response: Response,
    features: Singles,
    growth: float,
    rng: np.random.Generator,
    averages: bool = False,
    rounded: bool = False,
) -> Weights:
    """Draw one replicate's weights and curvature; see `Weights` for the arguments."""
    total, used = features.shape[1], response.n_used
    first = int(rng.integers(total - used + 1))
    columns = slice(first, first + used)
    basis, curvature = features[:0], np.zeros((len(features), 0), np.float32)
    if growth > 0:
        basis, curvature = draw_curvature(response, features, rng)
    basis, start = (np.ascontiguousarray(all_D[..., columns]) for all_D in (basis, response.start))
    scale = response.used_scale(columns)
    if rounded:
        start = bfloat16(start).astype(np.float32)
    bends = (basis, curvature, growth, response.facts.sampling or 0.0)
    fixed = (features, first, *bends, scale, start, rounded)
    sizes = (len(basis), used, used, *((used, len(basis)) if averages else (0, 0)))
    return Weights(*fixed, np.zeros(used), np.zeros(used, np.float32), *map(np.zeros, sizes))


def draw_curvature(
    response: Response, features: Singles, rng: np.random.Generator
) -> tuple[Singles, Singles]:
    """Draw the directions X_e of all edges, random sums of a few edges' gradients of norm 1.

    They are independent between edges but for the laws of gradients of log-probabilities:
    sum p_0 X = 0 at each node, and sum p_0 |X|^2 = sum p_0 |psi|^2. The gradients (k, T) are on all
    weights of the file, their factors (E, k).
    """
    problem_E = np.repeat(np.arange(response.n_problems), np.diff(response.edge_start))
    changes = (np.diff(problem_E) != 0) | (np.diff(response.edge_node) != 0)
    node_V = np.flatnonzero(np.concatenate([[True], changes]))
    edges_V = np.diff(np.append(node_V, len(problem_E)))

    def of_node(values: Any) -> Any:
        return np.repeat(np.add.reduceat(values, node_V), edges_V, axis=0)

    p_E = np.exp(response.log_p0)
    p_E /= of_node(p_E)
    rows = rng.permutation(np.flatnonzero(response.norm2 > 0))[:_DIRECTIONS]
    norm_K = np.sqrt(len(rows) * response.norm2[rows])
    basis_KT = features[rows] / norm_K[:, None].astype(np.float32)
    x_EK = rng.standard_normal((len(p_E), len(rows)), dtype=np.float32)
    x_EK *= np.sqrt(response.norm2)[:, None].astype(np.float32)
    x_EK -= of_node(x_EK * p_E[:, None].astype(np.float32))
    drawn2_E = ((x_EK @ ((basis_KT * response.scale) @ basis_KT.T)) * x_EK).sum(axis=1)
    wanted_E, drawn_E = of_node(p_E * response.norm2), of_node(p_E * drawn2_E)
    length_E = np.sqrt(np.divide(wanted_E, drawn_E, out=np.zeros_like(p_E), where=drawn_E > 0))
    return basis_KT, x_EK * length_E[:, None].astype(np.float32)
