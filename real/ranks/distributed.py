"""The processes of one run on several GPUs, as `torchrun` starts them.

All ranks go through the same loop. The first one alone reads answers, asks the guard, writes and
reports; what it decides is sent to the others, so ranks cannot come to differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lab.base.errors import Terminated, UserError, exit_code, first_line, one_line
from real.model.policy import phase_of, pick_device
from real.ranks.launched import Launched, launched
from real.ranks.sharding import shard


class RanksLost(Exception):
    """Another rank has failed, or kept this one waiting for longer than `rank_timeout`."""

    told = False
    """torchrun has asked this rank to end, so it knows of the failure and has named it."""


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

    def shard(self, scorer: Any) -> None:
        """Spread a `Scorer` over the ranks, with shards as `sharding.shard` makes them."""
        if self.world > 1:
            shard(scorer, init_device_mesh(self.device, (self.world,)))


_TOLD_SECONDS = 3.0
"""Time in which torchrun ends the ranks that are left when one has failed."""
ALONE = Ranks()
"""The only process of its run."""


@contextlib.contextmanager
def joined_ranks(device: str, rank_timeout: float) -> Iterator[Ranks]:
    """Meet the other ranks, if `torchrun` started any, and part at the end.

    An error ends this process with one line on stderr; torchrun then ends the other ranks.

    Args:
        device: `auto`, `cpu` or `cuda`.
        rank_timeout: seconds after which a collective that waits for another rank fails.

    Raises:
        UserError: the ranks do not fit this machine.
    """
    process = launched()
    if process is None or process.world == 1:
        yield ALONE
        return
    kind = _check(process, device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=rank_timeout))
    except (dist.DistError, ValueError) as error:
        raise UserError(
            f"rank {process.rank}: could not meet the other ranks ({first_line(error)}); start "
            "them together with torchrun"
        ) from error
    ranks = Ranks(process.rank, process.world, kind)
    try:
        with lost_ranks_named():
            yield ranks
            ranks.wait()
        dist.destroy_process_group()
    except BaseException as error:
        end_rank(process.rank, error)


@contextlib.contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Give the error of a collective that failed for want of another rank a name of its own.

    Raises:
        RanksLost: in place of an error of gloo, NCCL or their store.
    """
    try:
        yield
    except RuntimeError as error:
        words = str(error).lower()
        known = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
        if not isinstance(error, dist.DistError) and not any(word in words for word in known):
            raise
        # Without the place in the library's source, and its guesses at the cause.
        reason = re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]
        remedy = "go on with guard-train resume"
        if "timed out" in reason.lower():
            remedy += ", with a larger rank_timeout if a rank only needs longer"
        lost = RanksLost(f"lost the other ranks ({reason}); {remedy}")
        for note in getattr(error, "__notes__", ()):  # the phase
            lost.add_note(note)
        # torchrun's signal must not disturb the closing of the run folder, which comes first.
        signal.signal(signal.SIGTERM, lambda *_: setattr(lost, "told", True))
        raise lost from error


def end_rank(rank: int, error: BaseException) -> NoReturn:
    """Print why this rank fails, and end its process.

    Nothing is cleaned up: NCCL would wait for ranks that do not answer.
    """
    if isinstance(error, RanksLost):
        # The rank that failed first has said why; this one speaks only where nobody else can, as
        # after a hang.
        deadline = time.monotonic() + _TOLD_SECONDS
        while not error.told and time.monotonic() < deadline:
            time.sleep(0.1)
    elif not isinstance(error, (UserError, KeyboardInterrupt)):
        traceback.print_exception(error)
    sentence = _sentence(rank, error)
    if sentence and not getattr(error, "told", False):
        print(f"guard-train: {one_line(sentence)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(error))


def _sentence(rank: int, error: BaseException) -> str:
    """Return what a rank says at its end; empty where torchrun, or the first rank, says it."""
    if isinstance(error, KeyboardInterrupt):
        silent = rank > 0 or isinstance(error, Terminated)
        return "" if silent else "interrupted; what was written so far can be read"
    expected = isinstance(error, (UserError, RanksLost))
    reason = str(error) if expected else f"{type(error).__name__}: {first_line(error)}"
    return ": ".join(filter(None, [f"rank {rank}", phase_of(error), reason]))


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
