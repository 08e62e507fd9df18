"""The weights of one replicate before training, and its curvature."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.trace.response import Response
from sim.world.measured.tree import Singles, Weights

_DIRECTIONS = 32
"""Gradients that a replicate's directions of curvature are sums of."""


def draw_weights(
    response: Response,
    features: Singles,
    growth: float,
    sampling: float,
    rng: np.random.Generator,
    averages: bool = False,
) -> Weights:
    """Draw one replicate's weights and curvature.

    Args:
        response: the measured model.
        features: (E, T) its features in single precision, shared by all replicates.
        growth: g; 0 for the linear model.
        sampling: s.
        rng: of the replicate.
        averages: keep a moving average.
    """
    total, used = features.shape[1], response.n_used
    first = int(rng.integers(total - used + 1))
    own = slice(first, first + used)
    basis, curvature = features[:0], np.zeros((len(features), 0), np.float32)
    if growth > 0:
        basis, curvature = draw_curvature(response, features, rng)
    basis, start = (np.ascontiguousarray(all_D[..., own]) for all_D in (basis, response.start))
    scale = response.used_scale(own)
    fixed = (features, first, basis, curvature, growth, sampling, scale, start)
    sizes = (len(basis), used, used, *((used, len(basis)) if averages else (0, 0)))
    return Weights(*fixed, np.zeros(used), np.zeros(used, np.float32), *map(np.zeros, sizes))


def draw_curvature(
    response: Response, features: Singles, rng: np.random.Generator
) -> tuple[Singles, Singles]:
    """Draw the directions X_e of all edges, random sums of a few edges' gradients of norm 1.

    They are independent between edges but for the laws of gradients of log-probabilities:
    sum p_0 X = 0 at each node, and sum p_0 |X|^2 = sum p_0 |psi|^2.

    Returns:
        basis: (k, T) the gradients, on all weights of the file.
        curvature: (E, k) the factors of every edge.
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
