"""Weights on their way to an engine's process: buckets of memory that both processes see.

The trainer fills a bucket, the engine's process loads what is in it, and the trainer goes on with
the next. On a CPU the memory is a file that both map. Where it has room for all weights there is
one bucket, every byte is copied once, and the ranks of a machine fill one bucket together. On a GPU
the bucket is memory of the device, opened through CUDA IPC.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lab.errors import UserError
from real.engines.buckets import Entry, Handle, device_handle, file_handle, map_file, n_bytes
from real.model.allocator import fixed_segments
from real.ranks.distributed import ALONE, Ranks
from real.ranks.launched import launched
from real.ranks.sharding import whole_tensor

BUCKET = 2**29
"""Bytes of a bucket that does not hold all weights."""
_ALIGNED = 256
"""Tensors start at multiples of it, so that they can be viewed in any dtype."""
_SPARE = 2**28
"""Bytes that are left free in the folder, for requests and rollouts."""
_MEMORY = Path("/dev/shm")


class Bucket(Protocol):
    """Memory that another process can open."""

    memory: Tensor
    """(bytes,) uint8."""
    share: tuple[int, int]
    """This process's number, and the number of processes that fill it together."""

    def handle(self) -> Handle:
        """Return what `real.engines.buckets.opened` takes in the other process."""
        ...

    def wait(self) -> None:
        """Wait for all who fill it, and for the device."""
        ...


class HostBucket:
    """A file in memory or on disk that both processes map."""

    def __init__(self, path: Path, size: int, ranks: Ranks = ALONE) -> None:
        """Make and map it.

        Args:
            path: of the file, the same for all ranks of a machine.
            size: in bytes.
            ranks: those that fill it together.
        """
        self._path, self._ranks = path, ranks
        self.share = _local_share(ranks)
        if self.share[0] == 0:
            with path.open("wb") as file:
                # All of it at once: writing to mapped memory that cannot be had is a SIGBUS.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:  # macOS
                    file.truncate(size)
        ranks.wait()
        self.memory = map_file(path, size)

    def handle(self) -> Handle:
        """Return its path and size."""
        return file_handle(self._path, len(self.memory))

    def wait(self) -> None:
        """Wait for the other ranks."""
        self._ranks.wait()


class CudaBucket:
    """Memory of a GPU, opened by the engine's process on the same GPU through CUDA IPC."""

    def __init__(self, size: int, device: torch.device, ranks: Ranks = ALONE) -> None:
        """Allocate it.

        Args:
            size: in bytes.
            device: this rank's.
            ranks: those that fill such buckets at the same time, for one engine.
        """
        self.share: tuple[int, int] = (0, 1)
        self._ranks = ranks
        with fixed_segments():
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)

    def handle(self) -> Handle:
        """Return torch's description of it."""
        return device_handle(self.memory)

    def wait(self) -> None:
        """Wait for the copies into it, and for the other ranks."""
        torch.cuda.synchronize(self.memory.device)
        self._ranks.wait()

    def close(self) -> None:
        """Give the memory back."""
        del self.memory
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes that decide on a bucket."""

    total: int
    """Bytes of all weights, aligned."""
    largest: int
    """Bytes of the largest one."""

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype | None) -> Room:
        """Return the sizes of a model's weights.

        Args:
            model: a causal language model.
            dtype: in which floating-point weights are sent; unchanged if None.
        """
        sizes = [
            _aligned(n_bytes(p.shape, dtype if dtype and p.is_floating_point() else p.dtype))
            for p in model.parameters()
        ]
        return cls(sum(sizes), max(sizes))

    @property
    def bucket(self) -> int:
        """Bytes of a bucket that is filled again and again."""
        return min(self.total, max(self.largest, BUCKET))

    def host_bucket(self, folder: Path, ranks: Ranks = ALONE) -> HostBucket:
        """Make a bucket in a folder: for all weights if it has room for them.

        Args:
            folder: of this rank.
            ranks: those that fill it together; one of each machine decides.

        Raises:
            UserError: the folder has no room for the largest weight.
        """
        path = _of_machine(folder, ranks)
        free = shutil.disk_usage(path).free - _SPARE
        size = self.total if self.total <= free else max(self.largest, min(BUCKET, free))
        size = int(_gathered(torch.tensor(size), ranks))
        try:
            return HostBucket(path / "weights", size, ranks)
        except OSError as error:
            raise UserError(
                f"weights for the engine: {path} has no room for {size >> 20} MiB "
                f"({error.strerror}); name a folder with room by engine_exchange"
            ) from error


NO_WEIGHTS = Room(0, 0)


def exchange_folder(room: Room, chosen: str | None = None) -> Path:
    """Make a folder for the exchange with an engine's process.

    Args:
        room: of the weights that will go through it.
        chosen: the folder to make it in; if None one in memory where there is room, else on disk.

    Raises:
        UserError: the chosen folder cannot be written.
    """
    if chosen is None and _MEMORY.is_dir():
        free = shutil.disk_usage(_MEMORY).free - _SPARE
        chosen = str(_MEMORY) if room.bucket <= free else None
    try:
        return Path(tempfile.mkdtemp(prefix="guard-engine-", dir=chosen))
    except OSError as error:
        raise UserError(
            f"engine_exchange = {chosen}: cannot be written ({error.strerror}); name a folder that "
            "you may write to"
        ) from error


def fill(
    bucket: Bucket, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[list[Entry], bool]]:
    """Copy weights into a bucket; yield whenever it is full, or all are in it.

    Args:
        bucket: at least as large as the largest weight. At every yield the caller has the other
            process take what is in it before going on.
        weights: sharded ones are gathered, so all ranks must do this together.

    Yields:
        The bucket's tensors, and whether they are the last.
    """
    rank, world = bucket.share
    entries: list[Entry] = []
    used = 0
    for number, (name, weight) in enumerate(weights):
        size = n_bytes(weight.shape, weight.dtype)
        if used + size > len(bucket.memory):
            bucket.wait()
            yield entries, False
            bucket.wait()
            entries, used = [], 0
        entry = Entry(name, str(weight.dtype).removeprefix("torch."), [*weight.shape], used)
        whole = whole_tensor(weight)
        if number % world == rank:
            entry.view(bucket.memory).copy_(whole)
        entries.append(entry)
        used += _aligned(size)
    bucket.wait()
    yield entries, True
    bucket.wait()


def _of_machine(folder: Path, ranks: Ranks) -> Path:
    """Return the folder of this machine's first rank."""
    process = launched()
    first = 0 if process is None else process.rank - process.local_rank
    return Path(os.fsdecode(gathered_bytes(os.fsencode(folder), ranks)[first]))


def gathered_bytes(values: bytes, ranks: Ranks) -> list[bytes]:
    """Return the bytes of all ranks, at most 4096 each, none of them 0."""
    padded = torch.zeros(4096, dtype=torch.uint8)
    padded[: len(values)] = torch.tensor(list(values), dtype=torch.uint8)
    return [bytes(row.tolist()).rstrip(b"\0") for row in ranks.gather(padded)]


def _gathered(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return the tensor of this machine's first rank."""
    process = launched()
    if ranks.world == 1 or process is None:
        return tensor
    return ranks.gather(tensor)[process.rank - process.local_rank]


def _local_share(ranks: Ranks) -> tuple[int, int]:
    """Return this process's number and the number of processes, among the ranks of a machine."""
    process = launched()
    if ranks.world == 1 or process is None:
        return 0, 1
    return process.local_rank, process.local_world


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
