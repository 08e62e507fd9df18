"""An engine that is started anew when it died."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from real.engines.rollouts import Engine, EngineDied, EngineError, Prompts, Rollouts, Sampling
from real.ranks.distributed import Ranks
from real.ranks.sharding import whole_tensor

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


_NOBODY = -(2**31)
"""Version of a rank without a prompt."""


class Shareable(Protocol):
    """An engine that can sample a part of the prompts, as it would sample them among all."""

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Sample for `prompts[rank::world]`, `share` being rank and world; see `Engine`."""
        ...

    def release(self) -> None:
        """See `Engine`."""
        ...

    def update_weights(self, model: Any, version: int) -> None:
        """See `Engine`."""
        ...

    def close(self) -> None:
        """See `Engine`."""
        ...


class RankedEngine:
    """Rank r's engine samples prompts r, r + world, ...; every rank gets the rollouts of all."""

    def __init__(
        self,
        engine: Shareable,
        ranks: Ranks,
        device: torch.device,
        pad_token_id: int,
        copy: Any | None = None,
    ) -> None:
        """Set up.

        Args:
            engine: this rank's own.
            ranks: all of them.
            device: of the rollouts.
            pad_token_id: fills the places after a response's end.
            copy: the model that the engine samples with, if that is one in this process: a whole
                copy of the trained one. Ranks decode unequally many steps, and each pass of a
                sharded model needs all of them.
        """
        self.engine, self._ranks, self._copy = engine, ranks, copy
        self._device, self._pad_token_id = device, pad_token_id

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with the draws of a single engine."""
        own = self._own(prompts, n, sampling, generator)
        longest = self._ranks.highest(own.tokens_PNT.shape[2])
        most = -(-len(prompts) // self._ranks.world)

        def together(values: Tensor, fill: float = 0) -> Tensor:
            """(P, n) or (P, n, T) values of all ranks, in the prompts' order."""
            room = (0, longest - values.shape[2]) if values.ndim == 3 else ()
            size = (*room, 0, 0, 0, most - len(values))
            found = self._ranks.gather(torch.nn.functional.pad(values, size, value=fill))
            return found.transpose(0, 1).flatten(0, 1)[: len(prompts)]

        def told(values: Tensor | None) -> Tensor | None:
            """The same of a field that engines may leave out; ranks without a prompt follow."""
            if not sampling.stats or not self._ranks.highest(values is not None):
                return None
            return together(own.lengths_PN.double() if values is None else values)

        return Rollouts(
            together(own.tokens_PNT, self._pad_token_id),
            together(own.logprobs_PNT),
            together(own.lengths_PN),
            together(own.finished_PN.byte()).bool(),
            self._one_version(own.version),
            told(own.entropy_PV),
            told(own.certainty_PV),
        ).to(self._device)

    def release(self) -> None:
        """Give up memory for an update."""
        self.engine.release()

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> None:
        """Hand over the weights, gathered one by one."""
        if self._copy is None:
            self.engine.update_weights(model, version)
            return
        pairs = zip(model.parameters(), self._copy.parameters(), strict=True)
        for trained, sampled in pairs:
            if trained.requires_grad:
                sampled.copy_(whole_tensor(trained))
        self.engine.update_weights(self._copy, version)

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def _own(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """This rank's part; nothing where there are fewer prompts than ranks."""
        share = self._ranks.share
        if share[0] < len(prompts):
            return self.engine.sample(prompts, n, sampling, generator, share)
        whole = torch.zeros((0, n, 0), dtype=torch.int64)
        return Rollouts(whole, whole.float(), whole.sum(2), whole.sum(2).bool(), _NOBODY)

    def _one_version(self, version: int) -> int:
        """The version of all ranks that sampled anything.

        Raises:
            EngineError: they differ.
        """
        found = {int(v) for v in self._ranks.gather(torch.tensor(version))} - {_NOBODY}
        if len(found) > 1:
            told = ", ".join(map(str, sorted(found)))
            raise EngineError(f"engines: they sampled with versions {told} of the weights")
        return found.pop()
