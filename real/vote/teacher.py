"""Co-rewarding II's teacher: a slowly moving average of the trained weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lab.errors import UserError
from real.ranks.sharding import shard_of
from real.update.average import WeightAverage
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
        self._sampler = parts.sampler
        self._n_steps = n_steps
        self._average = WeightAverage(self._trained())
        self.moved = False
        """At first it is the model itself, and nothing has to be swapped."""

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """Implement `SecondVotes`: the model holds the teacher's weights meanwhile."""
        if not self.moved:
            yield version
            return
        with self._average.answering(self._model, self._sampler.hand_over, version) as other:
            yield other

    def after_step(self, step: int) -> None:
        """Implement `Further`."""
        self._average.follow(self._trained(), ema_rate(step - 1, self._n_steps))
        self.moved = True

    @property
    def weights(self) -> dict[str, Tensor]:
        """The average."""
        return self._average.weights

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

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}


def ema_rate(done: int, n_steps: int) -> float:
    """Return the rate of the average after `done` of `n_steps` batches before this one."""
    share = done / max(1, n_steps - 1)
    return LAST_RATE + (FIRST_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))
