"""The change of gradients with the distance from the start model, from the checkpoints of a run.

The linear tree predicts how training changes the gradient of a token's log-probability through
the softmax alone: psi_e - sum over the node of p psi. The true gradient changes by R_e beyond that.
At a typical node its squared norm, relative to the gradient's own, grows about in proportion to the
distance of the weights from the start. That slope is the growth g of the simulator's policy
`measured`.

Squared norms are sums over the tokens of a node weighted by their probability, which is the trace
of the Fisher information. The typical node is the median: a sum over the nodes is that of a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from real.measure.gradients import Gradients, next_log_probs


class Edges(NamedTuple):
    """Tokens at which gradients are compared; each a sequence of E values."""

    contexts: Sequence[Sequence[int]]
    """Token ids of prompt and prefix."""
    tokens: Sequence[int]
    """The tokens."""
    nodes: Sequence[int]
    """Node of each; equal numbers share a context."""


class Growth:
    """Compares checkpoints of one run with the start model."""

    def __init__(
        self,
        model: Any,
        edges: Edges,
        temperature: float,
        coordinates: NDArray[np.int64],
        scale: NDArray[np.float32],
    ) -> None:
        """Measure the start model.

        Args:
            model: the start model; left as it is.
            edges: the compared tokens.
            coordinates: (D,) places of the compared weights.
            scale: (D,) number of weights that each stands for.
        """
        self._model, self._temperature = model, temperature
        self._edges = (edges.contexts, edges.tokens)
        _, self._node_E = np.unique(edges.nodes, return_inverse=True)
        self._coordinates, self._root = coordinates, np.sqrt(scale)
        self._start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._features_ED = self._gradients()

    def at(self, weights: Mapping[str, torch.Tensor]) -> float:
        """Compare one checkpoint.

        Args:
            weights: by the model's names; those left out are unchanged.

        Returns:
            The median over the nodes of the squared norm of the gradients' change beyond the
            softmax, relative to that of the gradients.
        """
        try:
            self._load(weights)
            p_E = np.exp(next_log_probs(self._model, *self._edges, self._temperature))
            now_ED = self._gradients()
        finally:
            self._load(self._start)
        nodes = self._node_E.max() + 1
        mean_VD = np.zeros((nodes, now_ED.shape[1]), np.float32)
        np.add.at(mean_VD, self._node_E, self._features_ED * p_E[:, None].astype(np.float32))
        linear_ED = self._features_ED - mean_VD[self._node_E]
        change_V, norm2_V = (
            np.bincount(self._node_E, p_E * (vector_ED**2).sum(1), nodes)
            for vector_ED in (now_ED - linear_ED, linear_ED)
        )
        known_V = norm2_V > 0
        return float(np.median(change_V[known_V] / norm2_V[known_V]))

    def _gradients(self) -> NDArray[np.float32]:
        """Gradients whose inner products estimate those on all weights."""
        contexts, tokens = self._edges
        gradients = Gradients(self._model, self._temperature)
        single = [(token,) for token in tokens]
        return gradients(contexts, single, self._coordinates)[0] * self._root

    @torch.no_grad()
    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def sampling_error(
    moved_KE: NDArray[np.float64], estimated_KE: NDArray[np.float64], norm2_E: NDArray[np.float64]
) -> float:
    """Return the squared error s of gradients on drawn weights, relative to their squared norm.

    Args:
        moved_KE: first-order changes of E log-probabilities along K changes of the weights.
        estimated_KE: the same from the drawn weights alone.
        norm2_E: squared norms of the gradients, by which both are divided.
    """
    known_E = norm2_E > 0
    error_E, size_E = (
        (values_KE[:, known_E] ** 2).sum(axis=0) / norm2_E[known_E]
        for values_KE in (estimated_KE - moved_KE, moved_KE)
    )
    return float(error_E.sum() / size_E.sum())


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope through the origin of (distance, relative squared change) points."""
    x, y = np.array(points, float).T
    return float(x @ y / (x @ x))
