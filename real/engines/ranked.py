"""The engines of several ranks, of which each samples a part of the responses."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from real.engines.rollouts import EngineError, Prompts, Rollouts, Sampling, shard_requests
from real.ranks.distributed import Ranks

_NO_VERSION = -(2**31)


class RankedEngine:
    """One engine a rank, or on the first of each group: each samples the responses dealt to it."""

    def __init__(self, engine: Any, ranks: Ranks, pad_token_id: int, group: int = 1) -> None:
        """Take this rank's engine; `group` ranks, a divisor of all, share one."""
        self.engine, self._ranks, self._group = engine, ranks, group
        self._n_engines = ranks.world // group
        # Of several engines each samples, as (M, 1) ones, the responses that its share deals to it.
        engine.share = ranks.rank // group, self._n_engines
        self._pad_token_id = pad_token_id
        self.update_weights, self.close = engine.update_weights, engine.close

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        part = self.sample_part(prompts, n, sampling, generator)
        if len(prompts) * n < self._n_engines:  # some have drawn nothing
            generator.set_state(self._ranks.gather(generator.get_state())[0])
        return self.gathered(part, len(prompts), n, sampling)

    def gathered(self, part: Rollouts, n_prompts: int, n: int, sampling: Sampling) -> Rollouts:
        """Return the (P, n) responses of all ranks; all must call this, with `sample_part`'s."""
        versions = {*self._ranks.gather(torch.tensor(part.version)).tolist()} - {_NO_VERSION}
        version, *others = versions
        if others:
            listed = ", ".join(map(str, sorted(versions)))
            raise EngineError(f"engines: they sampled with versions {listed} of the weights")
        # Without padding, and tokens as int32: those of an evaluation fill main memory.
        packed = part.packed()
        if not sampling.logprobs:
            del packed["logprobs"]
        for name in ("entropy", "certainty"):  # which engines, and ranks without a response, lack
            if self._ranks.highest(name in packed):
                packed.setdefault(name, part.lengths_PN.double())
        sent = {name: self._together(v, sampling.everywhere) for name, v in packed.items()}
        if not sampling.everywhere and not self._ranks.first:
            return _empty(n_prompts, n, version)
        rollouts = Rollouts.unpacked(sent, version, self._pad_token_id)
        engines = range(self._n_engines)
        parts = [shard_requests(n_prompts, n, (engine, self._n_engines)) for engine in engines]
        place = {pair: row for row, pair in enumerate(chain(*parts))}
        # Pairs of prompt and number, in the order of the prompts.
        return rollouts.arranged(torch.tensor([place[pair] for pair in sorted(place)]), n)

    def _together(self, values: Tensor, everywhere: bool) -> Tensor:
        """Return the rows of all ranks, on every rank or the first alone."""
        sizes = self._ranks.gather(torch.tensor([len(values)]))
        most = int(sizes.max())
        values = values.byte() if values.dtype == torch.bool else values
        room = [0, 0] * (values.ndim - 1) + [0, most - len(values)]
        rows = self._ranks.gather(torch.nn.functional.pad(values, room), everywhere)
        return rows[(torch.arange(most) < sizes)[: len(rows)]]

    def release(self) -> None:
        self.engine.release()
        if self._group > 1:
            self._ranks.wait()  # until the engine has left the GPUs of the whole group

    def sample_part(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample this rank's responses; nothing where there are fewer of them than ranks."""
        leads = self._ranks.rank % self._group == 0
        if leads and shard_requests(len(prompts), n, self.engine.share):
            rollouts = self.engine.sample(prompts, n, sampling, generator)
            # The only engine gives them prompt by prompt.
            return rollouts.arranged(torch.arange(rollouts.lengths_PN.numel()), 1)
        return _empty(0, 1, _NO_VERSION)


def _empty(n_prompts: int, n: int, version: int) -> Rollouts:
    """Return responses without a token."""
    empty = torch.zeros((n_prompts, n, 0), dtype=torch.int64)
    return Rollouts(empty, empty.float(), empty.sum(2), empty.sum(2).bool(), version)
