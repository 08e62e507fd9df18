"""What trainer and engine process say to each other: short JSON lines, the bulk in files.

Lines are so short that they always fit into the pipe: writing one cannot block, even if the other
side has stopped reading for good. Requests, rollouts and weights go through a folder, in memory
where there is room (`/dev/shm`). Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from real.engines.rollouts import Rollouts

REQUEST = "request.json"
ROLLOUTS = "rollouts.safetensors"
WEIGHTS = "weights.safetensors"
_MEMORY = Path("/dev/shm")


def send(pipe: Connection, message: Mapping[str, Any]) -> None:
    """Send one short message."""
    pipe.send_bytes(json.dumps(message).encode())


def receive(pipe: Connection) -> dict[str, Any]:
    """Wait for one message."""
    return json.loads(pipe.recv_bytes())


def exchange_folder(n_bytes: int) -> Path:
    """A new folder with room for weights of `n_bytes`, in memory if possible."""
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 1.2 * n_bytes + 2**26
    return Path(tempfile.mkdtemp(prefix="guard-engine-", dir=_MEMORY if in_memory else None))


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """Write rollouts to a file; their version goes with the message."""
    fields = {
        "tokens": rollouts.tokens_PNT,
        "logprobs": rollouts.logprobs_PNT,
        "lengths": rollouts.lengths_PN,
        "finished": rollouts.finished_PN,
        "entropy": rollouts.entropy_PV,
        "certainty": rollouts.certainty_PV,
    }
    told = {name: field.contiguous() for name, field in fields.items() if field is not None}
    save_file(told, path)


def read_rollouts(path: Path, version: int) -> Rollouts:
    """Read rollouts and delete the file."""
    found = load_file(path)
    path.unlink()
    return Rollouts(
        found["tokens"],
        found["logprobs"],
        found["lengths"],
        found["finished"],
        version,
        found.get("entropy"),
        found.get("certainty"),
    )


def read_weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every weight, one at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118, it is no dict
            yield name, file.get_tensor(name)
