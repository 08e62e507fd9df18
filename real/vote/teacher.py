"""Co-rewarding II's teacher: a slowly moving average of the trained weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lab.errors import UserError
from real.ranks.sharding import shard_of
from real.vote.further import Parts
from real.vote.second import SecondVotes

FIRST_RATE, LAST_RATE = 0.01, 1e-5
"""The average moves towards the weights at this rate, along a cosine over the run."""


class Teacher(SecondVotes):
    """Votes of a slow average of the weights: `w' <- w' + rate * (w - w')` after every batch.

    The average is kept in single precision at least. It costs that copy of the trained weights (of
    the adapters alone with LoRA), and a second one while it votes: the model then holds the
    teacher's weights, for the engine to take over. On several ranks both are sharded as the weights
    are, and all ranks must take every step.
    """

    def __init__(self, parts: Parts, n_steps: int) -> None:
        """Start at the model as it is now, before training and before a checkpoint is loaded.

        Args:
            parts: of the run.
            n_steps: batches of the whole run.
        """
        super().__init__(parts)
        self._model: Any = parts.sampler.policy.model
        self._engine = parts.sampler.engine
        self._n_steps = n_steps
        self.weights = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._trained()
        }
        self.moved = False
        """At first it is the model itself, and nothing has to be swapped."""

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """Implement `SecondVotes`: the model holds the teacher's weights meanwhile."""
        if not self.moved:
            yield version
            return
        kept = {name: p.detach().clone() for name, p in self._trained()}
        try:
            self._put(self.weights)
            # A number that no version of the trained weights has.
            self._hand_over(-1 - version)
            yield -1 - version
        finally:
            self._put(kept)
        self._hand_over(version)

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Implement `Further`."""
        rate = ema_rate(step - 1, self._n_steps)
        for name, p in self._trained():
            mean = self.weights[name]
            mean.lerp_(p.detach().to(mean.dtype), rate)
        self.moved = True

    def tensors(self) -> dict[str, Tensor]:
        """Implement `Further`."""
        return self.weights

    def values(self) -> Any:
        """Implement `Further`."""
        return {"moved": self.moved}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """See `Further`.

        Raises:
            UserError: the weights are those of another model.
        """
        shapes = {name: t.shape for name, t in tensors.items()}
        if shapes != {name: t.shape for name, t in self.weights.items()}:
            raise UserError(
                "checkpoint: the teacher's weights do not fit the model; start a new run"
            )
        for name, mean in self.weights.items():
            mean.copy_(shard_of(tensors[name], mean))
        self.moved = bool(values["moved"])

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, p in self._trained():
            p.copy_(weights[name])

    def _hand_over(self, version: int) -> None:
        self._engine.release()
        self._engine.update_weights(self._model, version)


def ema_rate(done: int, n_steps: int) -> float:
    """Return the rate of the average after `done` of `n_steps` batches before this one."""
    share = done / max(1, n_steps - 1)
    return LAST_RATE + (FIRST_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))
