"""Engines around an engine: one is started again when it died, one is shared by all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from real.engines.requests import dealt
from real.engines.rollouts import (
    Engine,
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    Sampling,
    Stages,
)
from real.ranks.distributed import Ranks
from real.ranks.sharding import whole_tensor

T = TypeVar("T")


class RestartingEngine:
    """Replaces an engine that died or hung, gives the new one the last weights, and asks again.

    The new engine gets the same random numbers as the old one, so the run is not changed.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int) -> None:
        """Make the first engine.

        Args:
            make: makes an engine, and waits until it is ready.
            restarts: number of further engines that may be made before the error is raised.
        """
        self._make = make
        self.left = restarts
        self.notice: Callable[[str], object] = warnings.warn
        """Called with a sentence when an engine is started again."""
        self._last: tuple[Any, int] | None = None
        self.engine: Engine = make()

    @property
    def queues(self) -> bool:
        """As that of the engine."""
        return self.engine.queues

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt."""
        state = generator.get_state()

        def draw(engine: Engine) -> Rollouts:
            generator.set_state(state)
            return engine.sample(prompts, n, sampling, generator)

        return self._with_restarts(draw)

    def release(self) -> None:
        """Free memory for an update. An engine that died has freed all it had."""
        self._with_restarts(lambda engine: engine.release())

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the weights, and keep a reference to them."""
        # Set before the attempt: if it fails, the next engine must get these and no older ones.
        self._last = (model, version)
        return self._with_restarts(lambda engine: engine.update_weights(model, version))

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def _with_restarts(self, do: Callable[[Engine], T]) -> T:
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
                self.notice(f"{error}; starting another engine, {self.left} more allowed")

    def _restart(self) -> None:
        self.engine.close()
        self.engine = self._make()
        if self._last is not None:
            self.engine.update_weights(*self._last)


_NO_VERSION = -(2**31)
"""Version of a rank without a response."""


class Shareable(Engine, Protocol):
    """An engine that can sample a part of the responses, with the draws they have among all."""

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Sample the (M, 1) responses `dealt` to one rank, `share` being rank and world."""
        ...


class RankedEngine:
    """One engine a rank: each samples the responses `dealt` to it, and gets those of all ranks.

    Where groups of ranks share engines, responses are dealt to the first rank of each group.
    """

    def __init__(
        self,
        engine: Shareable,
        ranks: Ranks,
        pad_token_id: int,
        copy: Any | None = None,
        group: int = 1,
    ) -> None:
        """Set up.

        Args:
            engine: of this rank.
            ranks: of the run.
            pad_token_id: fills the positions after a response's end.
            copy: an unsharded copy of the trained model, if the engine samples with a model of this
                process. Ranks decode different numbers of steps, and each pass of a sharded model
                needs all of them.
            group: ranks that share an engine; divides their number.
        """
        self.engine, self._ranks, self._copy = engine, ranks, copy
        self._group = group
        self._pad_token_id = pad_token_id

    @property
    def queues(self) -> bool:
        """As that of the engines."""
        return self.engine.queues

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with the draws of a single engine."""
        part = self.sample_part(prompts, n, sampling, generator)
        return self.gathered(part, len(prompts), n, sampling)

    def gathered(self, part: Rollouts, n_prompts: int, n: int, sampling: Sampling) -> Rollouts:
        """Return the (P, n) responses of all ranks; all must call this.

        Args:
            part: of this rank, from `sample_part`.
            n_prompts: P.
            n: responses to each prompt.
            sampling: how they were drawn.

        Raises:
            EngineError: ranks sampled with different versions of the weights.
        """
        longest = self._ranks.highest(part.tokens_PNT.shape[2])
        parts = [self._dealt(n_prompts, n, rank) for rank in range(self._ranks.world)]
        most = max(map(len, parts))

        def together(values: Tensor, fill: float = 0) -> Tensor:
            """Gather (M, 1) or (M, 1, T) values of all ranks, each padded to as many rows."""
            room = (0, longest - values.shape[2]) if values.ndim == 3 else ()
            size = (*room, 0, 0, 0, most - len(values))
            gathered = self._ranks.gather(torch.nn.functional.pad(values, size, value=fill))
            return gathered.flatten(0, 1)

        def optional(values: Tensor | None) -> Tensor | None:
            """Gather a field that engines may leave out; ranks without a response take part."""
            if not sampling.stats or not self._ranks.highest(values is not None):
                return None
            return together(part.lengths_PN.double() if values is None else values)

        row_of = {
            pair: rank * most + row
            for rank, pairs in enumerate(parts)
            for row, pair in enumerate(pairs)
        }
        found = Rollouts(
            together(part.tokens_PNT, self._pad_token_id),
            together(part.logprobs_PNT),
            together(part.lengths_PN),
            together(part.finished_PN.byte()).bool(),
            self._one_version(part.version),
            optional(part.entropy_PV),
            optional(part.certainty_PV),
        )
        rows = [row_of[p, i] for p in range(n_prompts) for i in range(n)]
        return found.arranged(torch.tensor(rows), n)

    def release(self) -> None:
        """Give up memory for an update."""
        self.engine.release()
        if self._group > 1:
            self._ranks.wait()  # until the engine has left the GPUs of the whole group

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the weights, gathered one by one."""
        if self._copy is None:
            return self.engine.update_weights(model, version)
        pairs = zip(model.parameters(), self._copy.parameters(), strict=True)
        for trained, sampled in pairs:
            if trained.requires_grad:
                sampled.copy_(whole_tensor(trained))
        return self.engine.update_weights(self._copy, version)

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def sample_part(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample this rank's responses; nothing where there are fewer of them than ranks."""
        if self._dealt(len(prompts), n, self._ranks.rank):
            share = self._ranks.rank // self._group, self._ranks.world // self._group
            found = self.engine.sample(prompts, n, sampling, generator, share)
            # The only engine gives them prompt by prompt.
            return found.arranged(torch.arange(found.lengths_PN.numel()), 1)
        empty = torch.zeros((0, 1, 0), dtype=torch.int64)
        return Rollouts(empty, empty.float(), empty.sum(2), empty.sum(2).bool(), _NO_VERSION)

    def _dealt(self, n_prompts: int, n: int, rank: int) -> list[tuple[int, int]]:
        """Return prompt and number of the responses that a rank samples."""
        if rank % self._group:
            return []
        return dealt(n_prompts, n, (rank // self._group, self._ranks.world // self._group))

    def _one_version(self, version: int) -> int:
        """Return the version of all ranks that sampled anything.

        Raises:
            EngineError: they differ.
        """
        versions = {int(v) for v in self._ranks.gather(torch.tensor(version))} - {_NO_VERSION}
        if len(versions) > 1:
            listed = ", ".join(map(str, sorted(versions)))
            raise EngineError(f"engines: they sampled with versions {listed} of the weights")
        return versions.pop()
