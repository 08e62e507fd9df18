"""Runs of verl on a CPU, and what they left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from run_verl import ENVIRONMENT, HERE

from lab.trace.trace import Trace, load
from real.problems.problem import Problem, ProblemSet
from real.tiny import problems
from real.verl.commands import write_problems

N_PROBLEMS = 9
"""One more than two batches, so that verl leaves another one out of every epoch."""
LIMIT = 3600.0
"""Seconds after which a run counts as hung; a usual one takes one minute on two idle cores."""


class Done(NamedTuple):
    """A run that ended."""

    out: Path
    code: int
    output: str

    @property
    def trace(self) -> Trace:
        return load(self.out / "run")

    def dumped(self, name: str) -> dict[str, Any]:
        """What the run wrote down of a step."""
        return torch.load(self.out / "dump" / f"{name}.pt", weights_only=False)

    def shards(self, kind: str, step: int) -> list[dict[str, Any]]:
        """A file of a checkpoint's actor, rank by rank."""
        actor = self.out / "checkpoints" / f"global_step_{step}" / "actor"
        names = sorted(actor.glob(f"{kind}_world_size_*_rank_*.pt"))
        return [torch.load(name, weights_only=False) for name in names]


def run(out: Path, *overrides: str, **environment: str) -> Done:
    """Run verl in a folder, made on the first call; its processes are gone afterwards."""
    if not out.exists():
        out.mkdir(parents=True)
        tiny = [Problem(p.id, p.prompt, p.answer) for p in problems(N_PROBLEMS)]
        write_problems(out / "problems.parquet", [ProblemSet("tiny", tiny)], "")
    return started([sys.executable, HERE / "run_verl.py", out, *overrides], out, **environment)


def started(command: Sequence[str | Path], out: Path, **environment: str) -> Done:
    """Run a command in a folder, in the environment of verl on a CPU, as `run` does."""
    own = {**os.environ, **ENVIRONMENT, "VERL_CPU_DUMP": str(out / "dump"), **environment}
    start = time.monotonic()
    with (out / "output.txt").open("w") as log:
        process = subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT, cwd=out)
        children: set[psutil.Process] = set()
        while process.poll() is None and time.monotonic() - start < LIMIT:
            children |= set(psutil.Process(process.pid).children(recursive=True))
            time.sleep(0.5)
    for left in {*children, psutil.Process()} - {psutil.Process()}:
        if left.is_running():
            left.send_signal(signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    return Done(out, process.wait(), (out / "output.txt").read_text(errors="replace"))
