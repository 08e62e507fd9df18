"""The processes of one run on several GPUs: meeting, sharding one model, files of tensors.

All ranks go through the same loop. The first one alone reads answers, asks the guard, writes and
reports; what it decides is sent to the others, so ranks cannot come to differ. A sharded parameter
is a DTensor (FSDP2). Everything that gathers must be done by all ranks in the same order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from lab.base.errors import Terminated, UserError, exit_code, first_line, one_line
from real.model.machine import phase_of, pick_device
from real.ranks import launched, model_copies


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
    local_rank: int = 0
    """Number among the ranks of its machine, of which there are `local_world`."""
    local_world: int = 1

    @property
    def share(self) -> tuple[int, int]:
        """Rank and number of ranks."""
        return self.rank, self.world

    @property
    def first(self) -> bool:
        """True for the rank that reads answers, decides, writes and reports."""
        return self.rank == 0

    def from_first(self, values_RC: NDArray[Any] | None) -> NDArray[np.float64]:
        """The first rank's (R, C) numbers in double precision; all ranks must call this."""
        if self.first and values_RC is None:
            raise ValueError("the first rank must give the numbers that all ranks need")
        given = np.zeros((0, 0)) if values_RC is None else values_RC
        values = np.ascontiguousarray(given, np.float64)
        if self.world > 1:
            shape = torch.tensor(values.shape)
            dist.broadcast(shape, src=0)
            values = values if self.first else np.zeros(shape.tolist())
            dist.broadcast(torch.from_numpy(values), src=0)
        return values

    def gather(self, tensor: Tensor, everywhere: bool = True) -> Tensor:
        """(world, ...) the tensors of all ranks, of one shape, on the CPU.

        On the first rank alone if not `everywhere`; the others get (0, ...).
        """
        if self.world == 1:
            return tensor.cpu()[None]
        sent = tensor.cpu().contiguous()
        n_kept = self.world if everywhere or self.first else 0
        gathered = sent.new_empty((n_kept, *sent.shape))
        if everywhere:
            dist.all_gather([*gathered], sent)
        else:
            dist.gather(sent, [*gathered] if self.first else None)
        return gathered

    def highest(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        return int(self.gather(torch.tensor(int(number))).max())

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.highest(0)

    def shard(self, scorer: Any, fsdp_size: int = 0) -> None:
        """Spread a `Scorer` over the ranks of each group of `fsdp_size`, as `shard` does."""
        if self.world > 1:
            n = model_copies(self.world, fsdp_size)
            shard(scorer, mesh_of(self.device, n, self.world // n))


_TOLD_SECONDS = 3.0
"""Time in which torchrun ends the ranks that are left when one has failed."""
ALONE = Ranks()


@contextlib.contextmanager
def joined_ranks(device: str, rank_timeout: float) -> Iterator[Ranks]:
    """Meet the other ranks, if `torchrun` started any, and part at the end.

    An error ends this process with one line on stderr; torchrun then ends the other ranks. A
    collective fails that waits for another rank longer than `rank_timeout` seconds.
    """
    process = launched()
    if process is None or process.world == 1:
        yield ALONE
        return
    kind = pick_device(device).type
    if kind == "cuda":
        if process.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"ranks: {process.local_world} for {torch.cuda.device_count()} GPUs; "
                "start as many with torchrun --nproc-per-node"
            )
        torch.cuda.set_device(process.local_rank)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=rank_timeout))
    except (dist.DistError, ValueError) as error:
        raise UserError(
            f"rank {process.rank}: could not meet the other ranks ({first_line(error)}); start "
            "them together with torchrun"
        ) from error
    ranks = Ranks(process.rank, process.world, kind, process.local_rank, process.local_world)
    try:
        with lost_ranks_named():
            yield ranks
            ranks.wait()
        dist.destroy_process_group()
    except BaseException as error:
        end_rank(process.rank, error)


@contextlib.contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Raise `RanksLost` in place of an error of gloo, NCCL or their store for want of a rank."""
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
    """Print why this rank fails, and end its process; NCCL's own end would wait for others."""
    if isinstance(error, RanksLost):
        # The rank that failed first has said why; this one speaks only where nobody else can, as
        # after a hang.
        deadline = time.monotonic() + _TOLD_SECONDS
        while not error.told and time.monotonic() < deadline:
            time.sleep(0.1)
    elif not isinstance(error, (UserError, KeyboardInterrupt)):
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        silent = rank > 0 or isinstance(error, Terminated)
        sentence = "interrupted; what was written so far can be read"
    else:
        silent, expected = getattr(error, "told", False), isinstance(error, (UserError, RanksLost))
        reason = str(error) if expected else f"{type(error).__name__}: {first_line(error)}"
        sentence = ": ".join(filter(None, [f"rank {rank}", phase_of(error), reason]))
    if not silent:  # else torchrun, or the first rank, has said it
        print(f"guard-train: {one_line(sentence)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(error))


def shard(scorer: Any, mesh: DeviceMesh) -> None:
    """Shard a `Scorer` over the last dimension of a mesh, in place: each layer, then what is left.

    Ranks along a first of two dimensions hold the same shards (HSDP). Shards of trained weights are
    in single precision at least and serve the optimizer as its masters; the model computes with
    them rounded. Gradients are summed over ranks in single precision. The root is gathered again
    for each pass as the layers are: left whole, it would outlive the next update.
    """
    # Not above: it takes seconds, and the processes of engines import this module too.
    from transformers.modeling_layers import GradientCheckpointingLayer

    weights = next(scorer.parameters()).dtype
    wide = torch.promote_types(weights, torch.float32)
    widened = wide != weights
    precision = MixedPrecisionPolicy(param_dtype=weights if widened else None, reduce_dtype=wide)
    layers = [m for m in scorer.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, scorer):
        for parameter in module.parameters() if widened else ():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                # There, since main memory would hold embeddings and head wide for every rank.
                parameter.data = parameter.data.to(mesh.device_type).to(wide)
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def computed_with(parameter: Tensor, model: Any) -> torch.dtype:
    """Return the precision that a model computes with a parameter in, that before its sharding."""
    loaded: Any = getattr(model.config, "dtype", None)
    shard_is_wider = isinstance(parameter, DTensor) and parameter.dtype == torch.float32
    return loaded if shard_is_wider and loaded is torch.bfloat16 else parameter.dtype


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, which shares its memory; itself where not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(local: Tensor, other: Tensor) -> Tensor:
    """Return this rank's shard as part of a whole that is sharded as another tensor is."""
    if not isinstance(other, DTensor):
        return local
    mesh = other.device_mesh
    if local.device.type != mesh.device_type:
        mesh = mesh_of("cpu", mesh.size() // mesh.size(-1), mesh.size(-1))
    shape: Any = other.shape
    return DTensor.from_local(
        local, mesh, other.placements, run_check=False, shape=shape, stride=other.stride()
    )


@lru_cache(maxsize=2)
def mesh_of(device: str, copies: int, shards: int) -> DeviceMesh:
    """Return the mesh of all ranks, of one dimension for a single copy of the model."""
    if copies == 1:
        return init_device_mesh(device, (shards,))
    return init_device_mesh(device, (copies, shards), mesh_dim_names=("copy", "shard"))


def shard_group(tensors: Iterable[Tensor]) -> dist.ProcessGroup | None:
    """Return the ranks that share one copy of sharded tensors; None if none of them is sharded."""
    mesh = next((t.device_mesh for t in tensors if isinstance(t, DTensor)), None)
    return None if mesh is None else mesh.get_group(mesh.ndim - 1)


def norm_over_ranks(norm: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the L2 norm of a whole from that of each rank's shard, given `shard_group`."""
    if group is None:
        return norm
    squared = norm.square()
    dist.all_reduce(squared, group=group)
    return squared.sqrt()


class Pieces(NamedTuple):
    """A tensor in pieces along its first dimension, in files of several ranks; read when used."""

    parts: tuple[Tensor, ...]

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows from `start` up to `stop`, copied."""
        pieces, begin = [], 0
        for part in self.parts:
            pieces.append(part[max(start - begin, 0) : max(stop - begin, 0)])
            begin += len(part)
        return torch.cat(pieces)

    def whole(self) -> Tensor:
        """All rows."""
        return torch.cat(self.parts)


def local_tensors(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The shards that this rank is the first to hold, else empty ones; on the first all tensors."""
    local = {name: tensor for name, tensor in tensors.items() if rank == 0}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            mesh, shard = tensor.device_mesh, tensor.to_local()
            is_copy = mesh.ndim > 1 and mesh.get_local_rank(0) > 0
            local[name] = shard[:0] if is_copy else shard
    return local


def shard_of(whole: Tensor | Pieces, other: Tensor) -> Tensor:
    """A copy of this rank's shard of a tensor, cut and placed like another; no more is read."""
    if not isinstance(other, DTensor):
        copy = whole.whole() if isinstance(whole, Pieces) else whole.clone()
        return copy.to(other.device)
    # As FSDP2 cuts: equal numbers of rows, and what is left on the last ranks that have any.
    mesh, last = other.device_mesh, other.device_mesh.ndim - 1
    n_rows, rank = other.shape[0], mesh.get_local_rank(last)
    each = -(-n_rows // mesh.size(last))
    start, stop = min(each * rank, n_rows), min(each * (rank + 1), n_rows)
    local = whole.rows(start, stop) if isinstance(whole, Pieces) else whole[start:stop].clone()
    return sharded_like(local.to(other.device), other)


_KINDS = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U", "bool": "BOOL"}
"""Kinds of numbers in torch and in safetensors; behind both stand their bits."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file, put it on disk, and return its SHA-256 in hexadecimal digits.

    Unlike by the library each tensor is copied to the host, and gathered if it is sharded, when its
    turn comes; then all ranks must call this.
    """
    digest = hashlib.sha256()
    with path.open("wb") as file, ThreadPoolExecutor(1) as pool:
        for data in _contents(tensors):
            hashed = pool.submit(digest.update, data)  # lets go of the interpreter
            file.write(data)
            hashed.result()
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def shard_path(path: Path, rank: int, world: int) -> Path:
    """The file for a rank's part of a sharded `path`; one process writes `path` itself."""
    return path if world == 1 else path.with_name(f"{path.stem}.{rank}-of-{world}{path.suffix}")


def read_tensors(path: Path) -> dict[str, Tensor | Pieces]:
    """Tensors mapped from one file, or those of several ranks; a UserError if one is damaged."""
    if path.exists():
        return {**_read(path)}
    shard = next(path.parent.glob(f"{path.stem}.*-of-*{path.suffix}"), None)
    world = 1 if shard is None else int(shard.stem.rpartition("-")[2])
    files = [_read(shard_path(path, rank, world)) for rank in range(world)]
    names = dict.fromkeys(name for file in files for name in file)
    parts = {name: tuple(file[name] for file in files if name in file) for name in names}
    return {n: p[0] if len(p) < len(files) else Pieces(p) for n, p in parts.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); use an undamaged copy") from error


def _contents(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the format's table of contents, in JSON after its length, and each tensor's bytes."""
    # The widest types first, so that every tensor starts at a multiple of its item's size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, object] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        kind = dtype.rstrip("0123456789")
        code = _KINDS[kind] + dtype.removeprefix(kind)
        entries[name] = {"dtype": code, "shape": [*tensor.shape], "data_offsets": [start, end]}
    table = json.dumps(entries, separators=(",", ":")).encode()
    table += b" " * (-len(table) % 8)
    yield struct.pack("<Q", len(table)) + table
    for name in names:
        flat = whole_tensor(tensors[name].detach()).cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
