"""Several training runs at once, each in a process of its own.

A run that fails, or whose process is killed, is reported and the others go on. Processes are
forked from a server that has imported torch already, which saves seconds per run; where there is
no such server each process starts from nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from lab.settings import to_values
from lab.signals import stops_held
from real.compare.child import ERROR, NOTICE, run_child
from real.compare.places import Place
from real.compare.runs import Job, Outcome
from real.record.terminal import say

STOP_SECONDS = 30.0
"""Seconds after which runs that were asked to stop are waited for with a notice, or killed."""
_SAME_PRESS = 1.0
"""Seconds within which a signal to all processes reaches the runs."""
_LOOK_SECONDS = 5.0
"""Time between two looks at the progress of runs on several GPUs."""
_SAID = "guard-train: "
"""Begins lines of the program in a log."""


@dataclass(slots=True)
class _Child:
    process: Any
    pipe: Connection | None
    """None once it is closed, as by runs on several GPUs at their start."""
    outcome: Outcome
    place: Place


def run_jobs(
    jobs: Sequence[Job],
    places: Sequence[Place] = ((),),
    report: Callable[[float], None] = lambda _: None,
) -> list[Outcome]:
    """Run all jobs, one in each place at a time.

    On Ctrl-C, SIGTERM or SIGHUP the running ones end their batch, write a checkpoint and stop, and
    KeyboardInterrupt is raised.

    Args:
        jobs: the runs; the folders around theirs must exist. Finished ones are skipped, begun ones
            go on from their last checkpoint.
        places: GPUs of each run that computes at the same time, see `find_places`.
        report: called with the number of runs done, fractions of running ones included.

    Returns:
        One outcome per job, in order.
    """
    outcomes = [Outcome(job) for job in jobs]
    for outcome in outcomes:
        outcome.done = float(outcome.job.finished)
    waiting = [outcome for outcome in reversed(outcomes) if not outcome.done]
    running: list[_Child] = []
    free = list(reversed(places))
    context = _context(any(places))
    try:
        while waiting or running:
            while waiting and free:
                with stops_held():
                    running.append(_start(context, waiting.pop(), free.pop()))
            _wait(running)
            lives = [(child, _listen(child)) for child in running]
            free += [child.place for child, alive in lives if not alive]
            running = [child for child, alive in lives if alive]
            report(sum(outcome.done for outcome in outcomes))
    except KeyboardInterrupt:
        _stop(running)
        raise
    return outcomes


def _context(on_gpus: bool) -> Any:
    # CUDA does not survive a fork, and torchrun would close what tells of a forked process's end.
    if on_gpus or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    # Its start would unblock the signals that are held back while processes start.
    resource_tracker.ensure_running()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["real.trainer", "transformers.models.qwen2.modeling_qwen2"])
    return context


def _wait(running: Sequence[_Child]) -> None:
    """Wait for a message or an end, but not long for runs that send no messages."""
    pipes = [child.pipe for child in running if child.pipe is not None]
    silent = len(pipes) < len(running)
    wait([*pipes, *(c.process.sentinel for c in running)], _LOOK_SECONDS if silent else None)


def _start(context: Any, outcome: Outcome, place: Place) -> _Child:
    job = outcome.job
    ours, theirs = context.Pipe(duplex=False)
    settings = msgspec.json.encode(to_values(job.config)).decode()
    process = context.Process(
        target=run_child,
        args=(settings, str(job.folder), job.arm, str(job.log), place, theirs),
        name=job.name,
    )
    process.start()
    theirs.close()
    return _Child(process, ours, outcome, place)


def _listen(child: _Child) -> bool:
    """Read a child's messages; return False once it has ended."""
    ended = not child.process.is_alive()
    outcome = child.outcome
    if child.pipe is None:
        outcome.done = outcome.job.progress
        say(outcome.job.notices, f"{outcome.job.name}: ")
    try:
        while child.pipe is not None and child.pipe.poll():
            message = child.pipe.recv_bytes().decode()
            if message.startswith(ERROR):
                outcome.error = message.removeprefix(ERROR)
            elif message.startswith(NOTICE):
                say([message.removeprefix(NOTICE)], f"{outcome.job.name}: ")
            else:
                outcome.done = float(message)
    except EOFError:
        child.pipe = None
    if ended:
        child.process.join()
        if child.pipe is not None:
            child.pipe.close()
        if child.process.exitcode != 0 and outcome.error is None:
            outcome.error = _reason(child.process.exitcode, outcome.job.log)
        outcome.done = 1.0
        _remove_if_empty(outcome.job.log)
    return not ended


def _reason(code: int, log: Path) -> str:
    """Reason why a process without a message ended: a signal, or what its log says last."""
    if code < 0:
        return f"its process was killed by signal {-code}"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    said = [line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)]
    said = [line for line in said if not line.startswith("notice: ")]
    if said:  # torchrun's own report follows
        return said[-1].strip()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
    return f"its process ended with exit code {code}: {last}"


def _stop(running: Sequence[_Child]) -> None:
    """Ask the running ones to stop after their batch; at once when asked a second time."""
    try:
        _send(running, signal.SIGTERM)
        if not _ended(running, STOP_SECONDS):
            say(["waiting for the runs to end their batch; Ctrl-C again stops without waiting"])
            _ended(running, None)
    except KeyboardInterrupt:
        if not _ended(running, _SAME_PRESS):  # a terminal sends Ctrl-C to the runs as well
            _send(running, signal.SIGTERM)
            _ended(running, STOP_SECONDS)
    for child in running:
        child.process.kill()
        child.process.join()
        _remove_if_empty(child.outcome.job.log)


def _send(running: Sequence[_Child], number: signal.Signals) -> None:
    for child in running:
        if child.process.pid is not None and child.process.is_alive():
            os.kill(child.process.pid, number)


def _ended(running: Sequence[_Child], seconds: float | None) -> bool:
    """Wait for processes to end; return whether all have."""
    deadline = None if seconds is None else time.monotonic() + seconds
    for child in running:
        child.process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(child.process.is_alive() for child in running)


def _remove_if_empty(log: Path) -> None:
    if log.is_file() and log.stat().st_size == 0:
        log.unlink()
