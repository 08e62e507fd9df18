"""A model's weights as engines take them, and their way to an engine's process.

The trainer fills a bucket, the engine's process loads what is in it, and the trainer goes on with
the next. On a CPU the memory is a file that both map. Where it has room for all weights there is
one bucket, every byte is copied once, and the ranks of a machine fill one bucket together. On a GPU
the bucket is memory of the device, opened through CUDA IPC.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from lab.base.errors import UserError
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling, Stages
from real.engines.weight_transfer import (
    ADAPTERS,
    Entry,
    Handle,
    device_handle,
    file_handle,
    map_file,
    n_bytes,
    writing,
)
from real.model.policy import fixed_segments
from real.model.prepare import adapter_config, adapter_weights, merged_weights
from real.ranks.distributed import ALONE, Ranks
from real.ranks.launched import launched
from real.ranks.sharding import whole_tensor

COPY, LOAD = "seconds_sync_copy", "seconds_sync_load"
"""Columns of the steps: the trainer's part of an update of the weights, and the engine's."""
Ask = Callable[[Mapping[str, Any], list[Entry]], dict[str, Any]]
"""Sends a message and a list of weights to an engine's process, and returns its answer."""


def named_weights(
    model: Any, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name in the checkpoint and value of every weight, one at a time.

    Adapters are merged in. Tied weights come once, under the embedding's name: an engine ties them
    itself, and some refuse an output head that the model's config does not name.

    Args:
        model: a causal language model of transformers. Sharded weights are gathered, so with
            several ranks all of them must exhaust the iterator.
        dtype: of the floating-point weights; unchanged if None.
    """
    for name, value in stored_weights(model, dtype):
        yield name, whole_tensor(value)


def stored_weights(
    model: Any, dtype: torch.dtype | None = None, merge: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same as `named_weights`, with sharded weights left sharded.

    Without `merge` adapters are left out.
    """
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    for name, value in merged_weights(model, merge):
        if not (tied and name.endswith("lm_head.weight")):
            yield name, value.to(dtype) if dtype and value.is_floating_point() else value


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
        """Return what `real.engines.weight_transfer.opened` takes in the other process."""
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


class WeightSender:
    """Sends weights to an engine's process, in buckets that both processes see.

    Of a group of ranks that share an engine the first one talks to it; all fill buckets.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype | None = None,
        ranks: Ranks = ALONE,
        n_gpus: int = 1,
        ask: Ask | None = None,
        adapters: bool = False,
    ) -> None:
        """Set up.

        Args:
            folder: for a bucket in memory of the host.
            dtype: in which weights are sent; unchanged if None.
            ranks: of the run, which send together.
            ask: asks the engine; None for the other ranks of a group.
            adapters: send the weights without them once, and then adapters alone, unless the
                engine `refused` them.
        """
        self._folder, self._device, self._dtype = folder, device, dtype
        self._ranks, self._n_gpus, self._ask = ranks, n_gpus, ask
        self._adapters = adapters
        self.refused: str | None = None
        """Why the engine applies no adapters."""
        self._bucket: Bucket | None = None
        self._has_base = False

    @torch.no_grad()
    def send(self, model: Any, version: int) -> Stages:
        """Send all weights, or the adapters of weights that the engine has.

        Raises:
            UserError: there is no room for a bucket or for the adapters.
            EngineDied: the engine died or hung.
        """
        if not self._sends_adapters:
            return self._send_weights(model, version)
        stages = {COPY: 0.0, LOAD: 0.0}
        if not self._has_base:
            stages = self._send_weights(model, version, merge=False)
            self._has_base = True
        started = time.perf_counter()
        self._write_adapters(model)
        written = time.perf_counter()
        if self._ask is not None:
            self._ask({"do": "adapt", "version": version}, [])
        stages[COPY] += written - started
        stages[LOAD] += time.perf_counter() - written
        return stages

    @cached_property
    def _sends_adapters(self) -> bool:
        """True if the engines of all ranks apply adapters."""
        if not self._adapters:
            return False
        if self.refused is not None:
            warnings.warn(
                f"engine_adapters: {self.refused}; the merged weights are sent", stacklevel=5
            )
        return not self._ranks.highest(self.refused is not None)

    def _write_adapters(self, model: Any) -> None:
        # Gathered by all ranks, for the engines of some.
        weights = {name: whole_tensor(value) for name, value in adapter_weights(model)}
        if self._ask is None:
            return
        folder = self._folder / ADAPTERS
        with writing(folder):
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
            sent = {n: value.to("cpu", self._dtype).contiguous() for n, value in weights.items()}
            save_file(sent, folder / "adapter_model.safetensors")

    def _send_weights(self, model: Any, version: int, merge: bool = True) -> Stages:
        stages = {COPY: -time.perf_counter(), LOAD: 0.0}
        room = Room.of(model, self._dtype)
        bucket = self._bucket = self._bucket or self._make_bucket(room)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the engine needs the memory again
        message = {"do": "load", "version": version, "buckets": self._handles(bucket)}
        for entries, last in fill(bucket, stored_weights(model, self._dtype, merge)):
            started = time.perf_counter()
            if self._ask is not None:
                answer = self._ask({**message, "last": last}, entries)
                if ("taken" in answer) == last:
                    raise EngineDied("engine: it did not take all weights")
            stages[LOAD] += time.perf_counter() - started
        if isinstance(bucket, CudaBucket):
            bucket.close()
            self._bucket = None
        stages[COPY] += time.perf_counter() - stages[LOAD]
        return stages

    def _make_bucket(self, room: Room) -> Bucket:
        """Return memory of the GPU where the engine can open it, else of the host."""
        if self._device.type == "cuda" and self._opens_gpu:
            return CudaBucket(room.bucket, self._device, self._group)
        return room.host_bucket(self._folder, self._ranks)

    @property
    def _group(self) -> Ranks:
        """The ranks that wait for each other; a rank with an engine of its own waits for none."""
        return self._ranks if self._n_gpus > 1 else ALONE

    def _handles(self, bucket: Bucket) -> list[Handle]:
        """Return the handles of the group's buckets; of one for memory of the host."""
        if self._n_gpus == 1 or not isinstance(bucket, CudaBucket):
            return [bucket.handle()]
        texts = gathered_bytes(json.dumps(bucket.handle()).encode(), self._ranks)
        first = self._ranks.rank - self._ranks.rank % self._n_gpus
        return [json.loads(text) for text in texts[first : first + self._n_gpus]]

    @cached_property
    def _opens_gpu(self) -> bool:
        """True if the engines of all ranks can open memory of their trainers' GPUs."""
        probe, refusal = CudaBucket(1, self._device), None
        handles = self._handles(probe)
        if self._ask is not None:
            refusal = self._ask({"do": "open", "buckets": handles}, [])["refusal"]
        refused = self._ranks.highest(refusal is not None)
        probe.close()
        if refusal is not None:
            warnings.warn(
                f"engine: CUDA IPC does not work here ({refusal}); weights go through memory of "
                "the host, which takes longer",
                stacklevel=5,
            )
        return not refused


class GroupMember:
    """A rank without an engine: its group shares that of the group's first rank.

    It takes part in gathering and sending the weights.
    """

    queues = True

    def __init__(
        self,
        device: torch.device | str,
        weights_dtype: torch.dtype | None,
        ranks: Ranks,
        n_gpus: int,
        adapters: bool = False,
    ) -> None:
        """Set up.

        Args:
            weights_dtype: dtype in which weights are sent; unchanged if None.
            adapters: see `WeightSender`.
        """
        # No folder: the first rank of a machine, whose folder counts, has an engine.
        self._sender = WeightSender(
            Path(), torch.device(device), weights_dtype, ranks, n_gpus, adapters=adapters
        )

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Refuse: the group's responses are dealt to its first rank."""
        raise EngineError("engine: another rank of the group samples its responses")

    def release(self) -> None:
        """Do nothing."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send this rank's part of the weights."""
        return self._sender.send(model, version)

    def close(self) -> None:
        """Do nothing."""
