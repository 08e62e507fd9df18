"""The growth of gradients with the distance from the start model, from the checkpoints of a run.

The linear tree predicts how training changes the gradient of a token's log-probability through
the softmax alone: psi_e - sum over the node of p psi. What the true gradient has beyond that,
relative to it and in squared norm, grows about in proportion to the squared distance of the
weights from the start. `growth` is that slope, the c of the simulator's policy `measured`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from real.measure.gradients import TokenGradients, next_log_probs


class Growth:
    """Compares checkpoints of one run with the start model."""

    def __init__(
        self,
        model: Any,
        contexts: Sequence[Sequence[int]],
        tokens: Sequence[int],
        nodes: Sequence[int],
        log_mass: Sequence[float],
        temperature: float,
        coordinates: NDArray[np.int64],
    ) -> None:
        """Measure the start model.

        Args:
            model: the start model; left as it is.
            contexts: (E,) token ids of prompt and prefix.
            tokens: (E,) the tokens.
            nodes: (E,) node of each; equal numbers share a context.
            log_mass: (E,) log-probability of the prefix.
            temperature: of the votes.
            coordinates: (D,) places of the compared weights.
        """
        self._model, self._temperature = model, temperature
        self._edges = (contexts, tokens)
        _, self._node_E = np.unique(nodes, return_inverse=True)
        self._mass_E = np.exp(np.asarray(log_mass, float))
        self._coordinates = coordinates
        self._start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._features, _ = TokenGradients(model, temperature)(*self._edges, coordinates)

    def at(self, weights: Mapping[str, torch.Tensor]) -> tuple[float, float]:
        """Compare one checkpoint.

        Args:
            weights: by the model's names; those left out are unchanged.

        Returns:
            Squared distance of the weights, and the squared norm of the gradients' change beyond
            the softmax relative to that of the gradients.
        """
        try:
            distance = self._load(weights)
            p_E = np.exp(next_log_probs(self._model, *self._edges, self._temperature))
            gradients = TokenGradients(self._model, self._temperature)
            now, _ = gradients(*self._edges, self._coordinates)
        finally:
            self._load(self._start)
        mean = np.zeros((self._node_E.max() + 1, now.shape[1]), np.float32)
        np.add.at(mean, self._node_E, self._features * p_E[:, None].astype(np.float32))
        linear = self._features - mean[self._node_E]
        weight_E = self._mass_E * p_E * (1 - p_E)
        change = ((now - linear) ** 2).sum(1) @ weight_E
        return distance, float(change / ((linear**2).sum(1) @ weight_E))

    @torch.no_grad()
    def _load(self, weights: Mapping[str, torch.Tensor]) -> float:
        distance = 0.0
        for name, parameter in self._model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
                distance += float((weights[name] - self._start[name]).square().sum())
        return distance


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope through the origin of (squared distance, relative change) points."""
    x, y = np.array(points, float).T
    return float(x @ y / (x @ x))
