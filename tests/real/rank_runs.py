"""The client of `forked_ranks`: starts runs, reads what they leave, and compares it."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

import lab
from real.ranks.distributed import Pieces, read_tensors

TOLERANCE = 1e-6
"""In double precision: Adam's first step takes a gradient that is nothing but rounding for as good
as any other."""
assert_frame_equal = pd.testing.assert_frame_equal


@dataclass
class Ended:
    folder: Path
    codes: list[int]
    lines: list[list[str]]
    """Output of each rank."""

    def tensors(self, step, kind="model"):
        path = self.folder / f"checkpoints/step-{step:06d}/{kind}.safetensors"
        tensors = read_tensors(path).items()  # of one file, or of the shards of several ranks
        return {name: t.whole() if isinstance(t, Pieces) else t for name, t in tensors}

    @property
    def trace(self):
        return lab.load(self.folder)


@contextmanager
def server():
    """Give a function that starts runs in folders of a place and waits for their end."""
    command = [sys.executable, str(Path(__file__).with_name("forked_ranks.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # Warnings of a lost connection are those of torch.
    quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    process = subprocess.Popen(command, env=quiet, **pipes)

    def run(place, name, config, world=2, do="train", fault=None, parts=()):
        request = {"do": do, "world": world, "config": config, "fault": fault, "parts": parts}
        request |= {"port": free_port(), "folder": str(place / name)}
        request |= {"log": str(place / f"{name}-{do}-{world}.log")}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        codes = json.loads(process.stdout.readline())
        logs = [Path(f"{request['log']}.{rank}").read_text() for rank in range(world)]
        notice = "too few for the fates"  # of runs this short
        lines = [[line for line in log.splitlines() if notice not in line] for log in logs]
        return Ended(place / name, codes, lines)

    assert process.stdout.readline() == "ready\n"
    yield run
    process.stdin.close()
    process.wait(60)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def assert_close(made, expected):
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        assert made[name].dtype == value.dtype
        torch.testing.assert_close(made[name], value, rtol=0, atol=TOLERANCE, msg=name)


def assert_same_steps(made, expected):
    """The mismatch, which is rounding alone, and the clock may differ."""
    measured = [
        n for n in expected.steps if not n.startswith(("seconds", "mismatch")) and "_per_" not in n
    ]
    assert_frame_equal(made.steps[measured], expected.steps[measured], rtol=1e-4)
