"""What crosses over between an engine's process and its parent: messages, and buckets of weights.

Messages are short JSON texts, which a pipe's buffer always holds: writing one cannot block.
Requests and rollouts are files, in memory where there is room. A bucket is memory that both see; a
handle of plain values opens it. Nothing is pickled, and transformers is not imported.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from lab.base.errors import UserError

REQUEST = "request.json"
ROLLOUTS = "rollouts.safetensors"
ADAPTERS = "adapters"
"""Folder of adapters within that of the exchange, in the format of peft."""
Handle = dict[str, Any]


def send(pipe: Connection, message: Mapping[str, Any]) -> None:
    """Send one short message."""
    pipe.send_bytes(json.dumps(message).encode())


def receive(pipe: Connection) -> dict[str, Any]:
    """Wait for one message."""
    return json.loads(pipe.recv_bytes())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Replace the error of a write into the exchange folder by a UserError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"engine: {path} cannot be written ({error}); name a folder with room by "
            "engine_exchange"
        ) from error


class Entry(NamedTuple):
    """One tensor in a bucket."""

    name: str
    dtype: str
    """Name in torch, such as `bfloat16`."""
    shape: list[int]
    start: int

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor, a view of the bucket's bytes."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        end = self.start + math.prod(self.shape) * dtype.itemsize
        return memory[self.start : end].view(dtype).view(self.shape)


class Sent(NamedTuple):
    """A bucket's contents, as plain values that go to all processes of an engine."""

    buckets: list[Handle]
    """One, or the bucket of each process."""
    entries: list[Entry]
    last: bool
    """No weights follow. Else the buckets are filled again when these have been taken."""

    def weights(self, process: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Yield name and value of every weight, in the engine's process of that number."""
        memory = opened(self.buckets[process if len(self.buckets) > 1 else 0])
        for entry in self.entries:
            weight = entry.view(memory)
            # An engine may wait for the rest of a layer; until then the bucket is filled again.
            yield entry.name, weight if self.last else weight.clone()
        if memory.is_cuda:
            torch.cuda.synchronize()


class Delivery:
    """Weights as they arrive, bucket by bucket."""

    def __init__(self, parts: Iterator[Sent], progress: Callable[[], None]) -> None:
        self.parts, self._progress = parts, progress

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and value of every weight, for this process."""
        for part in self.parts:
            for weight in part.weights():
                self._progress()
                yield weight


def opened(handle: Handle) -> Tensor:
    """Return the (bytes,) uint8 memory of another process's bucket; a RuntimeError if denied."""
    if "cuda" not in handle:
        return _mapped(handle["path"], handle["bytes"])
    fields = [base64.b64decode(f["bytes"]) if isinstance(f, dict) else f for f in handle["cuda"]]
    kind: Any = torch.UntypedStorage
    # The engine sees one GPU, the trainer's, under a number of its own.
    storage = kind._new_shared_cuda(torch.cuda.current_device(), *fields)
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return memory[: handle["bytes"]]


def refused(handle: Handle) -> str | None:
    """Return why a bucket cannot be opened; None if it can."""
    try:
        opened(handle)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def map_file(path: str, size: int) -> Tensor:
    """Return the (bytes,) uint8 contents of a file, which change with it."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


_mapped = lru_cache(maxsize=1)(map_file)
