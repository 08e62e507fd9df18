"""Several training runs at once, each in a process of its own.

A run that fails, or whose process is killed, is reported and the others go on. Processes are
forked from a server that has imported torch already, which saves seconds per run; where there is
no such server each process starts from nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from lab.errors import UserError
from lab.settings import to_values
from lab.signals import STOP_SIGNALS, stop, stops_held
from lab.trace.manifest import FILE_NAME
from real.compare.runs import Job
from real.record.terminal import say
from real.settings.config import TrainConfig

STOP_SECONDS = 30.0
"""Seconds after which runs that were asked to stop are waited for with a notice, or killed."""
_SAME_PRESS = 1.0
"""Seconds within which a signal to all processes reaches the runs."""
_EXIT_INTERRUPTED = 130
_ERROR = "error "


@dataclass(slots=True)
class Outcome:
    """Outcome of a run."""

    job: Job
    done: float = 0.0
    """Share of the run that was made."""
    error: str | None = None
    """Reason of its failure in one line; None if it did not fail."""


@dataclass(slots=True)
class _Child:
    process: Any
    pipe: Connection
    outcome: Outcome


def run_jobs(
    jobs: Sequence[Job], n_parallel: int, report: Callable[[float], None] = lambda _: None
) -> list[Outcome]:
    """Run all jobs, `n_parallel` at a time.

    On Ctrl-C, SIGTERM or SIGHUP the running ones end their batch, write a checkpoint and stop, and
    KeyboardInterrupt is raised.

    Args:
        jobs: the runs; the folders around theirs must exist. Finished ones are skipped, begun ones
            go on from their last checkpoint.
        n_parallel: processes at once.
        report: called with the number of runs done, fractions of running ones included.

    Returns:
        One outcome per job, in order.
    """
    outcomes = [Outcome(job) for job in jobs]
    for outcome in outcomes:
        outcome.done = float(outcome.job.finished)
    waiting = [outcome for outcome in reversed(outcomes) if not outcome.done]
    running: list[_Child] = []
    context = _context()
    try:
        while waiting or running:
            while waiting and len(running) < n_parallel:
                with stops_held():
                    running.append(_start(context, waiting.pop()))
            wait([end for child in running for end in (child.pipe, child.process.sentinel)])
            running = [child for child in running if _listen(child)]
            report(sum(outcome.done for outcome in outcomes))
    except KeyboardInterrupt:
        _stop(running)
        raise
    return outcomes


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    # Its start would unblock the signals that are held back while processes start.
    resource_tracker.ensure_running()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["real.trainer", "transformers.models.qwen2.modeling_qwen2"])
    return context


def _start(context: Any, outcome: Outcome) -> _Child:
    job = outcome.job
    ours, theirs = context.Pipe(duplex=False)
    settings = msgspec.json.encode(to_values(job.config)).decode()
    process = context.Process(
        target=_run_child,
        args=(settings, str(job.folder), job.arm, str(job.log), theirs),
        name=job.name,
    )
    process.start()
    theirs.close()
    return _Child(process, ours, outcome)


def _listen(child: _Child) -> bool:
    """Read a child's messages; return False once it has ended."""
    ended = not child.process.is_alive()
    outcome = child.outcome
    try:
        while child.pipe.poll():
            message = child.pipe.recv_bytes().decode()
            if message.startswith(_ERROR):
                outcome.error = message.removeprefix(_ERROR)
            else:
                outcome.done = float(message)
    except EOFError:
        ended = True
    if ended:
        child.process.join()
        child.pipe.close()
        if child.process.exitcode != 0 and outcome.error is None:
            outcome.error = _reason(child.process.exitcode, outcome.job.log)
        outcome.done = 1.0
        _remove_if_empty(outcome.job.log)
    return not ended


def _reason(code: int, log: Path) -> str:
    """Reason why a process without a message ended: a signal, or a traceback in its log."""
    if code < 0:
        return f"its process was killed by signal {-code}"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
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


def _run_child(settings: str, folder: str, arm: str, log: str, pipe: Connection) -> None:
    """Body of a child process."""
    _stop_once()
    _redirect(log)
    from real.trainer import resume, train

    def report(done: float) -> None:
        try:
            pipe.send_bytes(f"{done}".encode())
        except BrokenPipeError:  # the comparison is gone: stop after this batch
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        config = msgspec.json.decode(settings, type=TrainConfig)
        if (Path(folder) / FILE_NAME).is_file():
            resume(folder, config, report)
        else:
            train(config, folder, report, arm)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except UserError as error:
        pipe.send_bytes(f"{_ERROR}{' '.join(str(error).split())}".encode())
        sys.exit(1)


def _stop_once() -> None:
    """Let the first stop signal end the run; later ones must not disturb the writing of data."""
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]

    def handle(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        stop(number)

    for number in handled:
        signal.signal(number, handle)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _redirect(log: str) -> None:
    """Redirect the output of the process to its log."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(target, number)
    os.close(target)


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of runs that failed."""
    return [outcome for outcome in outcomes if outcome.error is not None]
