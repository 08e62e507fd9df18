"""Several training runs at once, each in a process of its own, on the CPU or on GPUs of its own.

A run that fails, or whose process is killed, is reported and the others go on. Processes are
forked from a server that has imported torch already, which saves seconds per run; where there is
no such server each process starts from nothing. A run on several GPUs has one process for each, by
torchrun. What a run says stands in its log, which is read while it goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from lab.base.errors import Unfit, UserError, exit_code, one_line
from lab.base.files import remove_folder
from lab.base.settings import from_values, to_values
from lab.signals import STOP_SIGNALS, stop, stop_with_parent, stops_held, stops_raised
from lab.study import Job, Outcome
from lab.trace.manifest import FILE_NAME, locked
from real.ranks import speaks
from real.record.terminal import NUMBERS, holding, say
from real.settings.config import TrainConfig
from real.settings.stored import keeps_nothing

Place = tuple[str, ...]
"""Identifiers of the GPUs of one run; empty on a CPU."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_ON_CPU = 2  # runs at once


def find_places(
    device: str, n_parallel: int | None, gpus_per_run: int
) -> tuple[list[Place], list[str]]:
    """Return a place for each run that computes at the same time, and notices."""
    for name, number in (("jobs", n_parallel), ("gpus_per_run", gpus_per_run)):
        if number is not None and number < 1:
            raise UserError(f"{name} = {number}: must be at least 1")
    gpus: list[str] = []
    if device != "cpu":
        import torch  # takes seconds

        n = torch.cuda.device_count()
        named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        gpus = named[:n] or list(map(str, range(n)))
    if gpus_per_run > max(1, len(gpus)):
        raise UserError(f"gpus_per_run = {gpus_per_run}: there are {len(gpus)} GPUs; lower it")
    if not gpus:
        return [()] * (n_parallel or _ON_CPU), []
    n_places = len(gpus) // gpus_per_run
    places = [tuple(gpus[i * gpus_per_run : (i + 1) * gpus_per_run]) for i in range(n_places)]
    room = f"{len(gpus)} GPUs have room for {n_places} runs at once (gpus_per_run = {gpus_per_run})"
    waits = n_parallel is not None and n_parallel > n_places
    return places[:n_parallel], [f"jobs = {n_parallel}: {room}; the others wait"] * waits


_UNFIT = 3  # exit code of a run whose model or problems no run can use


def run_one(arguments: Sequence[str]) -> int:
    """Do a run, or go on with it where it was begun; returns the exit code.

    The arguments are its settings as JSON, its folder and its arm.
    """
    from real.trainer import resume, train  # takes seconds, which the comparison need not wait

    settings, folder, arm = arguments
    try:
        with stops_raised(), holding(NUMBERS, _log_numbers):
            config = from_values(msgspec.json.decode(settings), TrainConfig, "")
            if (Path(folder) / FILE_NAME).is_file():
                resume(folder, config, False)
            else:
                train(config, folder, False, arm)
    except (UserError, KeyboardInterrupt) as error:
        if isinstance(error, UserError):
            print(f"guard-train: {one_line(error)}", file=sys.stderr)
        return _UNFIT if isinstance(error, Unfit) else exit_code(error)
    return 0


def run_child(words: Sequence[str], log: str, place: Place) -> None:
    """Do one run in this process, or become torchrun where it has several GPUs."""
    _stop_once()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(target, number)
    os.close(target)
    if place:
        os.environ[VISIBLE] = ",".join(place)
    if len(place) > 1:
        stop_with_parent()
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(place))]
        ranks += ["--shutdown-timeout", str(SHUTDOWN_SECONDS), "-m", __name__]
        os.execv(sys.executable, [sys.executable, *ranks, *words, *sys.argv])
    threading.Thread(target=_outlive, daemon=True).start()
    sys.exit(run_one(words))


def _outlive() -> None:
    """Stop the run after its batch once the comparison is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


SHUTDOWN_SECONDS = 600
"""For a batch to end and a checkpoint to be written after a signal; torchrun gives 30."""


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


STOP_SECONDS = 30.0
"""Seconds after which runs that were asked to stop are waited for with a notice, or killed."""
_SAME_PRESS = 1.0  # seconds within which a signal to all processes reaches the runs
_LOOK_SECONDS = 0.5  # between two looks at the logs
_SAID, _NOTICE = "guard-train: ", "guard-train: notice: "  # begin the program's lines in a log
_STEP = re.compile(rf"{_SAID}(step (\d+)/(\d+), .*)")  # of `_log_numbers`


def _log_numbers(words: str) -> None:
    """Write a batch's number, the number of batches and what the batch measured to the log."""
    if speaks():
        print(f"{_SAID}{words}", file=sys.stderr)


class _Child:
    """A run in a process of its own."""

    def __init__(self, context: Any, outcome: Outcome, place: Place) -> None:
        self.outcome, self.place, job = outcome, place, outcome.job
        self.others: list[str] = []
        """Lines of the log that are neither notices nor numbers."""
        if job.begun:
            with contextlib.suppress(UserError), locked(job.folder):  # else the process refuses it
                if keeps_nothing(job.folder):
                    say([f"{job.name}: kept no checkpoint, and is made again"])
                    remove_folder(job.folder)
        words = (msgspec.json.encode(to_values(job.config)).decode(), str(job.folder), job.arm)
        self.log = job.log.open("w+", encoding="utf-8", errors="replace")
        given = words, str(job.log), place
        self.process = context.Process(target=run_child, args=given, name=job.name)
        self.process.start()


def run_jobs(
    jobs: Sequence[Job],
    places: Sequence[Place] = ((),),
    report: Callable[[float], None] = lambda _: None,
) -> list[Outcome]:
    """Run all jobs, one in each place at a time; returns their outcomes in order.

    Finished ones are skipped, begun ones go on from their last checkpoint, or are made again where
    they keep none. On Ctrl-C, SIGTERM or SIGHUP the running ones end their batch, write a
    checkpoint and stop, and KeyboardInterrupt is raised. Where model or problems of one run cannot
    be used `Unfit` ends all. The folders around those of the runs must exist.
    """
    outcomes = [Outcome(job, done=float(job.finished)) for job in jobs]
    waiting = [outcome for outcome in reversed(outcomes) if not outcome.done]
    running: list[_Child] = []
    free = list(reversed(places))
    context = _context(any(places))
    try:
        while waiting or running:
            while waiting and free:
                with stops_held():
                    running.append(_Child(context, waiting.pop(), free.pop()))
            wait([child.process.sentinel for child in running], _LOOK_SECONDS)
            lives = [(child, _listen(child)) for child in running]
            free += [child.place for child, alive in lives if not alive]
            running = [child for child, alive in lives if alive]
            report(sum(outcome.done for outcome in outcomes))
    except (KeyboardInterrupt, Unfit):
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
    preloaded = [__name__, "real.trainer", "transformers.models.qwen2.modeling_qwen2"]
    context.set_forkserver_preload(preloaded)
    return context


def _listen(child: _Child) -> bool:
    """Read what a child has said since; return False once it has ended."""
    ended = not child.process.is_alive()
    outcome, name = child.outcome, child.outcome.job.name
    for line in map(str.strip, child.log):
        if line.startswith(_NOTICE):
            say([line.removeprefix(_NOTICE)], f"{name}: ")
        elif step := _STEP.fullmatch(line):
            outcome.done = int(step[2]) / int(step[3])
            NUMBERS.get()(f"{name}: {step[1]}")
        elif line:
            child.others.append(line)
    if ended:
        _end(child)
        outcome.done = 1.0
        code = child.process.exitcode
        outcome.error = _reason(code, child.others) if code else None
        if code == _UNFIT and len(child.place) < 2:
            raise Unfit(outcome.error)
    return not ended


def _end(child: _Child) -> None:
    """Join a process; delete its log if all in it is reported."""
    child.process.join()
    child.log.close()
    if all(line.startswith(_SAID) for line in child.others):
        child.outcome.job.log.unlink(missing_ok=True)


def _reason(code: int, lines: Sequence[str]) -> str:
    """Reason why a process ended: a signal, or what its log says."""
    if code < 0:
        return f"its process was killed by signal {-code}"
    said = [line for line in lines if line.startswith(_SAID)]
    if said:  # other ranks, and torchrun's own report, follow
        return said[0].removeprefix(_SAID)
    return f"its process ended with exit code {code}: {lines[-1] if lines else 'no message'}"


def _stop(running: Sequence[_Child]) -> None:
    """Ask the running ones to stop after their batch; at once when asked a second time."""
    try:
        for child in running:
            child.process.terminate()
        if not _ended(running, STOP_SECONDS):
            say(["waiting for the runs to end their batch; Ctrl-C again stops without waiting"])
            _ended(running, None)
    except KeyboardInterrupt:
        if not _ended(running, _SAME_PRESS):  # a terminal sends Ctrl-C to the runs as well
            for child in running:
                child.process.terminate()
            _ended(running, STOP_SECONDS)
    for child in running:
        child.process.kill()
        _end(child)


def _ended(running: Sequence[_Child], seconds: float | None) -> bool:
    """Wait for processes to end; return whether all have."""
    deadline = None if seconds is None else time.monotonic() + seconds
    for child in running:
        child.process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(child.process.is_alive() for child in running)


if __name__ == "__main__":
    # Then the comparison's own command line, which the run folder notes.
    arguments, sys.argv = sys.argv[1:4], sys.argv[4:]
    sys.exit(run_one(arguments))
