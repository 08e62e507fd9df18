"""The weights of one replicate before training, and its curvature."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.trace.response import Response
from sim.world.measured.tree import Singles, Weights


def draw_weights(
    response: Response,
    features: Singles,
    growth: float,
    rng: np.random.Generator,
    averages: bool = False,
) -> Weights:
    """Draw one replicate's weights and curvature.

    Args:
        response: the measured model.
        features: (E, T) its features in single precision, shared by all replicates.
        growth: c; 0 for the linear model.
        rng: of the replicate.
        averages: keep a moving average.
    """
    total = features.shape[1]
    used = total if total == response.facts.n_weights else total // 2
    first = int(rng.integers(total - used + 1))
    own = slice(first, first + used)
    basis = np.ascontiguousarray(response.basis[:, own] if growth > 0 else response.basis[:0, own])
    scale = response.scale[own] * np.float32(total / used)
    curvature = np.zeros((len(features), 0), np.float32)
    if growth > 0:
        curvature = draw_curvature(response, rng) * np.float32(np.sqrt(growth))
    start = np.ascontiguousarray(response.start[own])
    sizes = (used, used, len(basis), used, used, *((used, len(basis)) if averages else (0, 0)))
    return Weights(features, first, basis, curvature, scale, start, *map(np.zeros, sizes))


def draw_curvature(response: Response, rng: np.random.Generator) -> Singles:
    """Draw the directions X_e of all edges, (E, k) in the directions of the basis.

    They are independent between edges but for the laws of gradients of log-probabilities:
    sum p_0 X = 0 at each node, and sum p_0 |X|^2 = sum p_0 |psi|^2.
    """
    problem_E = np.repeat(np.arange(response.n_problems), np.diff(response.edge_start))
    changes = (np.diff(problem_E) != 0) | (np.diff(response.edge_node) != 0)
    node_V = np.flatnonzero(np.concatenate([[True], changes]))
    edges_V = np.diff(np.append(node_V, len(problem_E)))

    def of_node(values: Any) -> Any:
        return np.repeat(np.add.reduceat(values, node_V), edges_V, axis=0)

    p_E = np.exp(response.log_p0)
    p_E /= of_node(p_E)
    x_EK = rng.standard_normal((len(p_E), len(response.basis)), dtype=np.float32)
    x_EK *= np.sqrt(response.norm2)[:, None].astype(np.float32)
    x_EK -= of_node(x_EK * p_E[:, None].astype(np.float32))
    # The directions of the basis are orthogonal.
    value2_K = (response.basis**2) @ response.scale
    wanted_E, drawn_E = of_node(p_E * response.norm2), of_node(p_E * (x_EK**2 @ value2_K))
    length_E = np.sqrt(np.divide(wanted_E, drawn_E, out=np.zeros_like(p_E), where=drawn_E > 0))
    return x_EK * length_E[:, None].astype(np.float32)
