"""Several processes, on one node or more: which of them this one is, as `torchrun` says it."""

from __future__ import annotations

import os
from typing import NamedTuple

from lab.base.errors import UserError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Launched(NamedTuple):
    """A process of `torchrun`."""

    rank: int
    world: int
    local_rank: int
    local_world: int


def launched() -> Launched | None:
    """Return this process's place among the ranks; None if it was started alone."""
    values = [os.environ.get(name) for name in _NAMES]
    if "MASTER_ADDR" not in os.environ or None in values:
        return None
    try:
        return Launched(*(int(value or "") for value in values))
    except ValueError:
        given = ", ".join(f"{n}={v}" for n, v in zip(_NAMES, values, strict=True))
        raise UserError(f"environment: {given} must be numbers; start with torchrun") from None


def model_copies(world: int, fsdp_size: int) -> int:
    """Return the number of groups of ranks that hold the model once each."""
    size = min(fsdp_size or world, world)
    if world % size:
        raise UserError(
            f"fsdp_size = {fsdp_size}: does not divide {world} ranks; give a divisor, such as the "
            "number of GPUs of a node"
        )
    return world // size


def speaks() -> bool:
    """True for the process that prints messages."""
    return (process := launched()) is None or process.rank == 0
