"""One engine a rank, or a group of ranks: the responses of a batch dealt and gathered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real.engines.rollouts import EngineError, Prompts, Rollouts, Sampling, Stages, shard_requests
from real.ranks.distributed import Ranks, whole_tensor

_NO_VERSION = -(2**31)
"""Version of a rank without a response."""


class RankedEngine:
    """One engine a rank: each samples the responses dealt to it, and gets those of all ranks.

    Where groups of ranks share engines, responses are dealt to the first rank of each group.
    """

    def __init__(
        self, engine: Any, ranks: Ranks, pad_token_id: int, copy: Any | None = None, group: int = 1
    ) -> None:
        """Set up.

        Args:
            engine: of this rank; its `sample` takes rank and number of ranks as a last argument,
                and gives (M, 1) responses with the draws that they have among all.
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
        """Return the (P, n) responses of all ranks; all must call this, with `sample_part`'s."""
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

        found = Rollouts(
            together(part.tokens_PNT, self._pad_token_id),
            together(part.logprobs_PNT),
            together(part.lengths_PN),
            together(part.finished_PN.byte()).bool(),
            self._one_version(part.version),
            optional(part.entropy_PV),
            optional(part.certainty_PV),
        )
        place = {p: r * most + row for r, own in enumerate(parts) for row, p in enumerate(own)}
        # Pairs of prompt and number, in the order of the prompts.
        return found.arranged(torch.tensor([place[pair] for pair in sorted(place)]), n)

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
        for trained, sampled in zip(model.parameters(), self._copy.parameters(), strict=True):
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
        return shard_requests(n_prompts, n, (rank // self._group, self._ranks.world // self._group))

    def _one_version(self, version: int) -> int:
        """Return the version of all ranks that sampled anything."""
        first, *others = {*self._ranks.gather(torch.tensor(version)).tolist()} - {_NO_VERSION}
        if others:
            listed = ", ".join(map(str, sorted([first, *others])))
            raise EngineError(f"engines: they sampled with versions {listed} of the weights")
        return first
