"""An engine that is started anew when it died."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from real.engines.rollouts import Engine, EngineDied, Prompts, Rollouts, Sampling

T = TypeVar("T")


class RestartingEngine:
    """Replaces an engine that died or hung, gives the new one the last weights, and asks again.

    The new engine gets the same random numbers as the old one, so a run goes on as if nothing had
    happened.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int) -> None:
        """Make the first engine.

        Args:
            make: makes one, and waits until it is ready.
            restarts: how often another one is made before the error is passed on.
        """
        self._make = make
        self.left = restarts
        self._last: tuple[Any, int] | None = None
        self.engine: Engine = make()

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt."""
        state = generator.get_state()

        def draw(engine: Engine) -> Rollouts:
            generator.set_state(state)
            return engine.sample(prompts, n, sampling, generator)

        return self._surviving(draw)

    def release(self) -> None:
        """Give up memory for an update. An engine that died has given up all it had."""
        self._surviving(lambda engine: engine.release())

    def update_weights(self, model: Any, version: int) -> None:
        """Hand over the weights, and remember where they are."""
        # Before the attempt: if it fails, the next engine must get these and no older ones.
        self._last = (model, version)
        self._surviving(lambda engine: engine.update_weights(model, version))

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def _surviving(self, do: Callable[[Engine], T]) -> T:
        died: EngineDied | None = None
        while True:
            try:
                if died is not None:
                    self._restart()
                return do(self.engine)
            except EngineDied as error:
                if not self.left:
                    raise
                self.left -= 1
                died = error
                warnings.warn(
                    f"{error}; starting another engine, {self.left} more allowed", stacklevel=3
                )

    def _restart(self) -> None:
        self.engine.close()
        self.engine = self._make()
        if self._last is not None:
            self.engine.update_weights(*self._last)
