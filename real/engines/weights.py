"""A model's weights as engines take them, and their way to an engine's process.

The trainer fills a bucket, the engine's process loads what is in it, and the trainer goes on with
the next. On a CPU it has room for all weights if possible, and a machine's ranks fill it together.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from lab.base.errors import UserError
from real.engines.exchange import ADAPTERS, Entry, Handle, map_file, writing
from real.engines.rollouts import EngineDied, Stages
from real.model.machine import fixed_segments
from real.model.prepare import adapter_config, adapter_weights, merged_weights
from real.ranks.distributed import ALONE, Ranks, whole_tensor

COPY, LOAD = "seconds_sync_copy", "seconds_sync_load"
"""Columns of the steps: the trainer's part of an update of the weights, and the engine's."""
Ask = Callable[[Mapping[str, Any], list[Entry]], dict[str, Any]]
BUCKET = 2**29
"""Bytes of a bucket that does not hold all weights."""
_ALIGNED = 256
"""Tensors start at multiples of it, so that they can be viewed in any dtype."""
SPARE = 2**28
"""Bytes that are left free in the folder, for requests and rollouts."""
MEMORY = Path("/dev/shm")


def named_weights(model: Any, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield `stored_weights`, gathered: all ranks must exhaust the iterator."""
    for name, value in stored_weights(model, dtype):
        yield name, whole_tensor(value)


def stored_weights(
    model: Any, dtype: torch.dtype | None = None, merge: bool = True, *, in_model: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield name in the checkpoint and value of every weight, one at a time.

    Tied weights come once, by the embedding's name: some engines refuse a head of their own.

    Args:
        dtype: of floating-point weights, unchanged if None.
        merge: with adapters, else without.
        in_model: as the model holds them, which may be other names, and experts in one tensor.
    """
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    for name, value in merged_weights(model, merge):
        if not (tied and name.endswith("lm_head.weight")):
            sent = value.to(dtype) if dtype and value.is_floating_point() else value
            yield from [(name, sent)] if in_model else in_checkpoint(model, name, sent)


def in_checkpoint(model: Any, name: str, value: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Return names and values in the checkpoint of one of the model's weights."""
    from transformers.core_model_loading import revert_weight_conversion

    shape = torch.empty(value.shape, dtype=value.dtype, device="meta")
    ((stored, first), *more) = revert_weight_conversion(model, {name: shape}).items()
    if first is shape and not more:
        return [(stored, value)]
    return revert_weight_conversion(model, {name: whole_tensor(value)}).items()


class HostBucket:
    """A file in memory or on disk that both processes map."""

    def __init__(self, path: Path, size: int, ranks: Ranks = ALONE) -> None:
        """Make and map a file of `size` bytes, the same for all ranks of a machine."""
        self._path, self.wait = path, ranks.wait
        self.share = ranks.local_rank, ranks.local_world
        """This process's number, and the number of processes that fill it together."""
        if ranks.local_rank == 0:
            with path.open("wb") as file:
                # All of it at once: writing to mapped memory that cannot be had is a SIGBUS.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:  # macOS
                    file.truncate(size)
        ranks.wait()
        self.memory = map_file(str(path), size)

    def handle(self) -> Handle:
        """Return what `real.engines.exchange.opened` takes in the other process."""
        return {"path": str(self._path), "bytes": len(self.memory)}


class CudaBucket:
    """Memory of a GPU, opened by the engine's process on the same GPU through CUDA IPC."""

    share = (0, 1)

    def __init__(self, size: int, device: torch.device, ranks: Ranks = ALONE) -> None:
        """Allocate `size` bytes; `ranks` fill such buckets at the same time, for one engine."""
        self._ranks = ranks
        with fixed_segments():
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)

    def handle(self) -> Handle:
        """Return torch's description of it, without the number of the device."""
        _, *fields = self.memory.untyped_storage()._share_cuda_()
        plain = [{"bytes": b64encode(f).decode()} if isinstance(f, bytes) else f for f in fields]
        return {"cuda": plain, "bytes": len(self.memory)}

    def wait(self) -> None:
        """Wait for the copies into it, and for the other ranks."""
        torch.cuda.synchronize(self.memory.device)
        self._ranks.wait()

    def close(self) -> None:
        del self.memory
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


Bucket = HostBucket | CudaBucket


class Room(NamedTuple):
    """Sizes that decide on a bucket."""

    total: int
    """Bytes of all weights, aligned."""
    largest: int

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype | None) -> Room:
        """Return the sizes of weights sent in `dtype`, or unchanged if None."""
        sizes = [
            _aligned(p.numel() * (dtype if dtype and p.is_floating_point() else p.dtype).itemsize)
            for p in model.parameters()
        ]
        return cls(sum(sizes), max(sizes))

    @property
    def bucket(self) -> int:
        """Bytes of a bucket that is filled again and again."""
        return min(self.total, max(self.largest, BUCKET))


NO_WEIGHTS = Room(0, 0)


def exchange_folder(room: Room, chosen: str | None = None) -> Path:
    """Make a folder in the `chosen` one; if None in memory if there is room, else on disk."""
    if chosen is None and MEMORY.is_dir():
        free = shutil.disk_usage(MEMORY).free - SPARE
        chosen = str(MEMORY) if room.bucket <= free else None
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
    """Copy weights into a bucket; yield its tensors, to be taken, and whether they are the last."""
    rank, world = bucket.share
    entries: list[Entry] = []
    used = 0
    for number, (name, weight) in enumerate(weights):
        size = weight.numel() * weight.element_size()
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


def gathered_bytes(values: bytes, ranks: Ranks) -> list[bytes]:
    """Return the bytes of all ranks, at most 4096 each, none of them 0."""
    padded = torch.zeros(4096, dtype=torch.uint8)
    padded[: len(values)] = torch.tensor(list(values), dtype=torch.uint8)
    return [bytes(row.tolist()).rstrip(b"\0") for row in ranks.gather(padded)]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class Route(NamedTuple):
    """The way of weights from a trainer to an engine."""

    device: torch.device = torch.device("cpu")
    dtype: torch.dtype | None = None
    """Precision in which they are sent; unchanged if None."""
    ranks: Ranks = ALONE
    n_gpus: int = 1
    """GPUs of an engine, each with a rank of the group that shares it."""
    adapters: bool = False
    """Weights are sent without adapters once, and then these alone, unless the engine refuses."""
    native: bool = False
    """The engine's model is the trainer's kind, not one that reads checkpoints itself."""


LOCAL = Route()


class WeightSender:
    """Sends weights to an engine; on other ranks of its group it stands in the engine's place."""

    def __init__(self, folder: Path, route: Route, ask: Ask | None = None) -> None:
        """Send nothing yet; of the ranks that share an engine all fill buckets, the first asks."""
        self._folder, self._route, self._ask = folder, route, ask
        self.refused: str | None = None
        self._bucket: Bucket | None = None
        self._has_base, self._loading = False, 0.0

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> Stages:
        """Send all weights, or the adapters of weights that the engine has."""
        if self._route.device.type == "cuda":
            torch.cuda.empty_cache()  # the engine needs the memory of the update again
        started, self._loading = time.perf_counter(), 0.0
        if not (self._sends_adapters and self._has_base):
            self._send_weights(model, version)
            self._has_base = True
        if self._sends_adapters:
            self._write_adapters(model)
            self._asked({"do": "adapt", "version": version}, [])
        return {COPY: time.perf_counter() - started - self._loading, LOAD: self._loading}

    def _asked(self, message: Mapping[str, Any], request: list[Entry]) -> dict[str, Any]:
        """Ask on the first rank, and add up the time."""
        started = time.perf_counter()
        answer = {} if self._ask is None else self._ask(message, request)
        self._loading += time.perf_counter() - started
        return answer

    @cached_property
    def _sends_adapters(self) -> bool:
        if not self._route.adapters:
            return False
        if self.refused is not None:
            warnings.warn(
                f"engine_adapters: {self.refused}; the merged weights are sent", stacklevel=5
            )
        return not self._route.ranks.highest(self.refused is not None)

    def _write_adapters(self, model: Any) -> None:
        # Gathered by all ranks, for the engines of some.
        weights = {name: whole_tensor(value) for name, value in adapter_weights(model)}
        if self._ask is None:
            return
        folder, dtype = self._folder / ADAPTERS, self._route.dtype
        with writing(folder):
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
            sent = {n: value.to("cpu", dtype).contiguous() for n, value in weights.items()}
            save_file(sent, folder / "adapter_model.safetensors")

    def _send_weights(self, model: Any, version: int) -> None:
        merge = not self._sends_adapters
        bucket = self._bucket = self._bucket or self._make_bucket(Room.of(model, self._route.dtype))
        message = {"do": "load", "version": version, "buckets": self._handles(bucket)}
        native, dtype = self._route.native, self._route.dtype
        weights = stored_weights(model, dtype, merge, in_model=native)
        for entries, last in fill(bucket, weights):
            answer = self._asked({**message, "last": last}, entries)
            if self._ask is not None and ("taken" in answer) == last:
                raise EngineDied("engine: it did not take all weights")
        if isinstance(bucket, CudaBucket):
            bucket.close()
            self._bucket = None

    def release(self) -> None:
        """Do nothing: the first rank's engine frees the GPUs of all."""

    def close(self) -> None:
        """Let go of the bucket's memory, of which the next engine may have need."""
        self._bucket = None

    def _make_bucket(self, room: Room) -> Bucket:
        if self._route.device.type == "cuda" and self._opens_gpu:
            # A rank with an engine of its own waits for none.
            group = self._route.ranks if self._route.n_gpus > 1 else ALONE
            return CudaBucket(room.bucket, self._route.device, group)
        # In the folder of the first rank of each machine.
        ranks = self._route.ranks
        first = ranks.rank - ranks.local_rank
        path = Path(os.fsdecode(gathered_bytes(os.fsencode(self._folder), ranks)[first]))
        free = shutil.disk_usage(path).free - SPARE
        size = room.total if room.total <= free else max(room.largest, min(BUCKET, free))
        # One for all machines, whose ranks wait for each other whenever a bucket is full.
        size = int(ranks.gather(torch.tensor(size)).min())
        try:
            return HostBucket(path / "weights", size, ranks)
        except OSError as error:
            raise UserError(
                f"weights for the engine: {path} has no room for {size >> 20} MiB "
                f"({error.strerror}); name a folder with room by engine_exchange"
            ) from error

    def _handles(self, bucket: Bucket) -> list[Handle]:
        """Return the handles of the group's buckets; of one for memory of the host."""
        if self._route.n_gpus == 1 or not isinstance(bucket, CudaBucket):
            return [bucket.handle()]
        texts = gathered_bytes(json.dumps(bucket.handle()).encode(), self._route.ranks)
        first = self._route.ranks.rank - self._route.ranks.rank % self._route.n_gpus
        return [json.loads(text) for text in texts[first : first + self._route.n_gpus]]

    @cached_property
    def _opens_gpu(self) -> bool:
        probe, refusal = CudaBucket(1, self._route.device), None
        handles = self._handles(probe)
        if self._ask is not None:
            refusal = self._ask({"do": "open", "buckets": handles}, [])["refusal"]
        refused = self._route.ranks.highest(refusal is not None)
        probe.close()
        if refusal is not None:
            warnings.warn(
                f"engine: CUDA IPC does not work here ({refusal}); weights go through memory of "
                "the host, which takes longer",
                stacklevel=5,
            )
        return not refused
