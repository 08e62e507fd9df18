"""The exponential moving average of the trained weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Named = Mapping[str, Tensor]


class WeightAverage:
    """An average in single precision at least, of weights by name, sharded as they are."""

    def __init__(self, weights: Named) -> None:
        self.weights = {
            name: w.detach().to(torch.promote_types(w.dtype, torch.float32), copy=True)
            for name, w in weights.items()
        }

    @torch.no_grad()
    def follow(self, weights: Named, rate: float) -> None:
        """Move the average towards the weights: `mean + rate * (weights - mean)`."""
        for name, mean in self.weights.items():
            mean.lerp_(weights[name].detach().to(mean.dtype), rate)

    @contextmanager
    def held_by(self, model: Any) -> Iterator[None]:
        """Let the model hold the average meanwhile. It costs one more copy of its weights."""
        held = {name: p for name, p in model.named_parameters() if name in self.weights}
        kept = {name: p.detach().clone() for name, p in held.items()}
        try:
            _copy_all(self.weights, held)
            yield
        finally:
            _copy_all(kept, held)


@torch.no_grad()
def _copy_all(weights: Named, to: Named) -> None:
    for name, p in to.items():
        p.copy_(weights[name])
