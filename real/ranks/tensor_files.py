"""safetensors files, written one tensor at a time: a second copy of a large model would not fit.

The library's own writer holds all bytes of a file in memory at once. Reading is the library's.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lab.base.errors import UserError
from real.ranks.sharding import Pieces, whole_tensor

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file and put it on disk.

    Args:
        path: to write; replaced if it exists.
        tensors: on any device; each is copied to the host when its turn comes. Sharded ones are
            gathered, and then all ranks must call this.

    Returns:
        The file's SHA-256, as hexadecimal digits.
    """
    names = _order(tensors)
    digest = hashlib.sha256()
    with path.open("wb") as file, ThreadPoolExecutor(1) as pool:
        for data in _contents(names, tensors):
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
    """All tensors of a safetensors file, on the CPU, or those of the files of several ranks.

    Files are mapped into memory, so values are read when they are used.

    Raises:
        UserError: the file is missing or damaged.
    """
    if path.exists():
        return {**_read(path)}
    files = [_read(file) for file in _shards(path)]
    names = dict.fromkeys(name for file in files for name in file)
    parts = {name: tuple(file[name] for file in files if name in file) for name in names}
    return {n: p[0] if len(p) < len(files) else Pieces(p) for n, p in parts.items()}


def _shards(path: Path) -> list[Path]:
    """The files of all ranks, by rank.

    Raises:
        UserError: one is missing.
    """
    found = next(path.parent.glob(f"{path.stem}.*-of-*{path.suffix}"), None)
    world = 1 if found is None else int(found.stem.rpartition("-")[2])
    return [shard_path(path, rank, world) for rank in range(world)]


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); use an undamaged copy") from error


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    # The widest types first, so that every tensor starts at a multiple of its item's size.
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _contents(names: list[str], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    yield _header(names, tensors)
    for name in names:
        yield _bytes(tensors[name])


def _header(names: list[str], tensors: Mapping[str, Tensor]) -> bytes:
    """Length and JSON table of contents, as the format wants them."""
    entries: dict[str, object] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    table = json.dumps(entries, separators=(",", ":")).encode()
    table += b" " * (-len(table) % 8)
    return struct.pack("<Q", len(table)) + table


def _bytes(tensor: Tensor) -> memoryview:
    flat = whole_tensor(tensor.detach()).cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
