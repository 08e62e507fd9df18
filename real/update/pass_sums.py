"""Sums of the micro-batches of a mini-batch, over all ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from real.update.passes import Place

_N_NUMBERS = 4
"""Of `Sums`."""


class Sums(NamedTuple):
    """Sums of one micro-batch, on its device."""

    numbers: Tensor
    """(4,) sums: loss, clipped tokens, KL, broken rows."""
    broken_R: Tensor
    """(R,) bool, rows with a log-prob that is not finite."""


def totals(sums_of_passes: list[Sums], world: int, device: torch.device) -> list[float]:
    """`Sums.numbers` over micro-batches and ranks; every fetch waits for a GPU to catch up."""
    added = torch.zeros(_N_NUMBERS, dtype=torch.float64, device=device)
    for sums in sums_of_passes:
        added += sums.numbers
    if world > 1 and dist.is_initialized():
        dist.all_reduce(added)
    return added.tolist()


def broken_rows(
    sums_of_passes: list[Sums], passes: list[list[Place]], share: tuple[int, int]
) -> tuple[Place, ...]:
    """Indices of all ranks' broken rows in the mini-batch."""
    rank, world = share
    own_places = [place for places in passes[rank::world] for place in places]
    flags = torch.cat([sums.broken_R for sums in sums_of_passes]).tolist() if sums_of_passes else []
    broken = [place for place, flag in zip(own_places, flags, strict=True) if flag]
    if world > 1 and dist.is_initialized():
        broken = _all_places(broken, world)
    return tuple(sorted(broken))


def _all_places(own_places: list[Place], world: int) -> list[Place]:
    """The places that all ranks name. They travel as numbers: nothing is pickled."""
    count = torch.tensor(len(own_places))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    padded = torch.full((int(count), 2), -1)
    padded[: len(own_places)] = torch.tensor(own_places, dtype=torch.int64).view(-1, 2)
    gathered = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(gathered, padded)
    return [(group, row) for group, row in torch.cat(gathered).tolist() if group >= 0]
