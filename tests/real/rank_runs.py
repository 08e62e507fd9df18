"""The client of `forked_ranks`: starts runs, reads what they leave, and compares it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import lab
from real.ranks.distributed import Pieces, read_tensors

TOLERANCE = 1e-6
"""In double precision: Adam's first step takes a gradient that is nothing but rounding for as good
as any other."""
# Typed too narrowly by pandas' stubs: columns and rows of a frame are frames here.
assert_frame_equal: Any = pd.testing.assert_frame_equal


@dataclass
class Ended:
    """A run of some ranks."""

    folder: Path
    codes: list[int]
    lines: list[list[str]]
    """Output of each rank."""

    def tensors(self, step: int, kind: str = "model") -> dict[str, torch.Tensor]:
        return whole_tensors(self.folder / f"checkpoints/step-{step:06d}/{kind}.safetensors")

    @property
    def trace(self) -> lab.Trace:
        return lab.load(self.folder)


Start = Callable[..., Ended]


def whole_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Of one file, or of the shards of several ranks."""
    tensors = read_tensors(path).items()
    return {name: t.whole() if isinstance(t, Pieces) else t for name, t in tensors}


@contextmanager
def server() -> Iterator[Start]:
    """Give a function that starts runs in folders of a place and waits for their end."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked_ranks.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Warnings of a lost connection are those of torch.
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    assert process.stdin and process.stdout

    def run(
        place: Path,
        name: str,
        config: dict[str, Any],
        world: int = 2,
        do: str = "train",
        fault: dict[str, Any] | None = None,
        parts: tuple[str, ...] = (),
    ) -> Ended:
        assert process.stdin and process.stdout
        request = {
            "do": do,
            "world": world,
            "port": free_port(),
            "folder": str(place / name),
            "config": config,
            "fault": fault,
            "log": str(place / f"{name}-{do}-{world}.log"),
            "parts": parts,
        }
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        codes = json.loads(process.stdout.readline())
        logs = [Path(f"{request['log']}.{rank}").read_text() for rank in range(world)]
        return Ended(place / name, codes, [_lines(log) for log in logs])

    assert process.stdout.readline() == "ready\n"
    yield run
    process.stdin.close()
    process.wait(60)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def assert_close(made: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        assert made[name].dtype == value.dtype
        torch.testing.assert_close(made[name], value, rtol=0, atol=TOLERANCE, msg=name)


def assert_same_steps(made: lab.Trace, expected: lab.Trace) -> None:
    """All columns but the clock's, and the mismatch, which is rounding alone."""
    measured = [
        n for n in expected.steps if not n.startswith(("seconds", "mismatch")) and "_per_" not in n
    ]
    assert_frame_equal(made.steps[measured], expected.steps[measured], rtol=1e-4)


def _lines(log: str) -> list[str]:
    """Lines of a log but the notice that runs this short have no fates."""
    return [line for line in log.splitlines() if "too few for the fates" not in line]
