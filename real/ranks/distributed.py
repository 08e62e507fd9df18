"""The processes of one run on several GPUs, as `torchrun` starts them.

All ranks go through the same loop. The first one alone reads answers, asks the guard, writes and
reports; what it decides is sent to the others, so ranks cannot come to differ.
"""

from __future__ import annotations

import contextlib
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

from lab.errors import UserError, first_line
from real.model.policy import pick_device
from real.ranks.failure import Watch
from real.ranks.launched import Launched, launched
from real.ranks.sharding import shard

_LONGEST = timedelta(days=1)
"""Longest wait for another rank, which may itself wait for an engine's evaluation."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the run. Tensors that are sent stay on the CPU (gloo)."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    """Kind of device that models are on."""
    watch: Watch | None = None
    """Notices the failure of another rank; None without others."""

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
        if self.world == 1:
            return tensor.cpu()[None]
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

    def at_work(self) -> None:
        """Let the other ranks wait on, see `Watch.at_work`."""
        if self.watch is not None:
            self.watch.at_work()

    def reasons(self) -> contextlib.AbstractContextManager[None]:
        """Replace the error of a lost connection by its reason, see `Watch.reasons`."""
        return contextlib.nullcontext() if self.watch is None else self.watch.reasons()

    def shard(self, scorer: Any, masters: bool = True) -> None:
        """Spread a `Scorer` over the ranks, with shards as `sharding.shard` makes them."""
        if self.world > 1:
            shard(scorer, init_device_mesh(self.device, (self.world,)), masters)


ALONE = Ranks()
"""The only process of its run."""


@contextlib.contextmanager
def joined_ranks(device: str, rank_timeout: float) -> Iterator[Ranks]:
    """Meet the other ranks, if `torchrun` started any, and part at the end.

    An error of one rank ends the processes of all: the first to fail prints the reason, and the
    others, which are told, end without a word. No rank cleans up after an error, see
    `real.ranks.failure`. A rank that hangs is waited for until `rank_timeout`, and one whose engine
    is at work for up to a day.

    Args:
        device: `auto`, `cpu` or `cuda`.
        rank_timeout: seconds that one rank waits for the others.

    Raises:
        UserError: the ranks do not fit this machine.
    """
    process = launched()
    if process is None or process.world == 1:
        yield ALONE
        return
    kind = _check(process, device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    # A hanging rank is named before the library ends those that wait for it.
    longer = timedelta(seconds=1.1 * rank_timeout + 30)
    try:
        dist.init_process_group(backend, timeout=longer)
    except (dist.DistError, ValueError) as error:
        raise UserError(
            f"rank {process.rank}: could not meet the other ranks ({first_line(error)}); start "
            "them together with torchrun"
        ) from error
    set_cpu_limit(_LONGEST)  # the watch ends the waiting for a rank, but not for one at work
    watch = Watch(process, rank_timeout)
    ranks = Ranks(process.rank, process.world, kind, watch)
    try:
        with watch.reasons():
            yield ranks
            watch.stop()
            ranks.wait()  # else a rank that leaves early would count as dead
        dist.destroy_process_group()
    except BaseException as error:
        watch.end(error)


def set_cpu_limit(limit: timedelta) -> None:
    """Set the time after which the library ends collectives of tensors on the CPU."""
    group: Any = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.device("cpu"))._set_default_timeout(limit)


def _check(process: Launched, device: str) -> str:
    """Raise a UserError for ranks that this machine cannot hold; returns the kind of device."""
    kind = pick_device(device).type
    if kind == "cuda":
        if process.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"ranks: {process.local_world} for {torch.cuda.device_count()} GPUs; "
                "start as many with torchrun --nproc-per-node"
            )
        torch.cuda.set_device(process.local_rank)
    return kind
