"""The processes of one run on several GPUs, as `torchrun` starts them.

All ranks go through the same loop. The first one alone reads answers, asks the guard, writes and
reports; what it decides is sent to the others, so ranks cannot come to differ.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lab.errors import UserError
from real.model.policy import pick_device
from real.ranks.launched import Launched, launched
from real.ranks.sharding import shard

_FAILED = "guard-train/failed"
"""Key of the store that ranks share; holds what the first rank to fail says."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the run. Tensors that are sent stay on the CPU (gloo)."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    """Kind of device that models are on."""

    @property
    def share(self) -> tuple[int, int]:
        """Rank and number of ranks."""
        return self.rank, self.world

    @property
    def first(self) -> bool:
        """True for the rank that reads answers, decides, writes and reports."""
        return self.rank == 0

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor; the others give one of its shape and type, which is filled."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def from_first(self, values_RC: NDArray[Any] | None) -> NDArray[np.float64]:
        """The first rank's (R, C) numbers in double precision; all ranks must call this.

        Args:
            values_RC: of the first rank; those of other ranks are not read.

        Raises:
            ValueError: the first rank gives none.
        """
        if self.first and values_RC is None:
            raise ValueError("the first rank must give the numbers that all ranks need")
        values = np.zeros((0, 0)) if values_RC is None or not self.first else values_RC
        values = values.astype(np.float64)
        if self.world == 1:
            return values
        n_rows, n_columns = self.broadcast(torch.tensor(values.shape)).tolist()
        if not self.first:
            values = np.zeros((n_rows, n_columns))
        return self.broadcast(torch.from_numpy(values)).numpy()

    def gather(self, tensor: Tensor) -> Tensor:
        """(world, ...) the tensors of all ranks, which have one shape, on the CPU."""
        tensors = [torch.empty_like(tensor, device="cpu") for _ in range(self.world)]
        dist.all_gather(tensors, tensor.cpu().contiguous())
        return torch.stack(tensors)

    def highest(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        if self.world == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.highest(0)

    def shard(self, scorer: Any) -> None:
        """Spread a `Scorer` over the ranks."""
        if self.world > 1:
            shard(scorer, init_device_mesh(self.device, (self.world,)))


ALONE = Ranks()
"""The only process of its run."""


@contextlib.contextmanager
def joined_ranks(device: str, rank_timeout: float) -> Iterator[Ranks]:
    """Meet the other ranks, if `torchrun` started any, and part at the end.

    An error of one rank ends all of them: those who wait for it lose contact, or give up after
    `rank_timeout`. The first to fail says why, the others end without a word.

    Args:
        device: `auto`, `cpu` or `cuda`.
        rank_timeout: seconds that one rank waits for the others.

    Raises:
        UserError: the ranks do not fit this machine, or contact was lost.
        SystemExit: another rank has said what happened.
    """
    process = launched()
    if process is None or process.world == 1:
        yield ALONE
        return
    kind = _check(process, device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=rank_timeout))
        yield Ranks(process.rank, process.world, kind)
        dist.destroy_process_group()
    except BaseException as error:
        _end(process.rank, error)


def _check(process: Launched, device: str) -> str:
    """Raise a UserError for ranks that this machine cannot hold; returns the kind of device."""
    if process.world != process.local_world:
        raise UserError(
            f"ranks: {process.world}, of which {process.local_world} on this machine; "
            "start all on one machine with torchrun --nproc-per-node"
        )
    kind = pick_device(device).type
    if kind == "cuda":
        if process.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"ranks: {process.world} for {torch.cuda.device_count()} GPUs; "
                "start as many with torchrun --nproc-per-node"
            )
        torch.cuda.set_device(process.local_rank)
    return kind


def _end(rank: int, error: BaseException) -> None:
    """Leave the others after an error, and raise what this rank has to say of it."""
    first = _tells_first(error)
    with contextlib.suppress(RuntimeError, ValueError):
        _abort()
    if not first:
        raise SystemExit(1) from error
    if _lost(error):
        # Without the place in the library's source, and its guesses at the cause.
        reason = re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]
        raise UserError(
            f"rank {rank}: lost the other ranks ({reason}); see what they said, "
            "then go on with guard-train resume"
        ) from error
    raise error


def _tells_first(error: BaseException) -> bool:
    """True if no other rank has reported a failure. A killed rank reports none."""
    mine = f"{os.getpid()} {type(error).__name__}"
    try:
        # The ranks' common store, as long as the process that holds it lives.
        store: Any = dist.distributed_c10d._get_default_store()
        return store.compare_set(_FAILED, "", mine).decode() == mine
    except (RuntimeError, ValueError):
        return True


def _lost(error: BaseException) -> bool:
    """The error is that of a collective, so not this rank's own."""
    words = str(error).lower()
    known = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in words for word in known)
    )


def _abort() -> None:
    """Let go of the process group without waiting for work that will never end."""
    group: Any = dist.group.WORLD
    if group is not None and dist.get_backend() == "nccl":
        group.abort()
    dist.destroy_process_group()
