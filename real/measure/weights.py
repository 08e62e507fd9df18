"""The weights that a measurement keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real.measure.gradients import Gradients, Tokens

_ROUNDS = 50
"""Rounds in which the chances reach their sum."""

_SCALE_EDGES, _UNIFORM = 256, 0.1
"""Edges from which the size of the gradient on every weight is estimated, and the share of the
chance of being drawn that is the same for all weights."""


def choose_weights(
    gradients: Gradients,
    contexts: Sequence[Sequence[int]],
    tokens: Sequence[Tokens],
    n: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw weights, in random order, and the number of weights that each stands for.

    Adam moves all weights by about the same, so the sum over weights has the smallest variance
    if each is drawn with a chance in proportion to the size of the gradients on it.
    """
    d = gradients.n_weights
    if n >= d:
        return rng.permutation(d), np.ones(d, np.float32)
    few = rng.permutation(len(tokens))[:_SCALE_EDGES]
    size_d = gradients.sizes([contexts[e] for e in few], [tokens[e] for e in few])
    share_d = _UNIFORM / d + (1 - _UNIFORM) * size_d / size_d.sum()
    chance_d = np.minimum(1.0, n * share_d)
    for _ in range(_ROUNDS):  # what is cut at 1 goes to the other weights
        chance_d = np.minimum(1.0, chance_d * n / chance_d.sum())
    # Equally spaced points on the line of all chances draw each weight with its own chance.
    order = rng.permutation(d)
    places = np.searchsorted(np.cumsum(chance_d[order]), np.arange(n) + rng.random())
    drawn = rng.permutation(order[places[places < d]])
    return drawn, (1 / chance_d[drawn]).astype(np.float32)
