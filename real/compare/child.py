"""The process of one run of a comparison; of a run on several GPUs one for each, by torchrun."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import msgspec

from lab.errors import EXIT_INTERRUPTED, UserError, exit_code, one_line
from lab.signals import STOP_SIGNALS, stop, stop_with_parent, stops_raised
from lab.trace.manifest import FILE_NAME
from real.compare.places import VISIBLE, Place
from real.record.terminal import send_notices
from real.settings.config import TrainConfig

ERROR, NOTICE = "error ", "notice "
"""Begin the message of a run that failed, and a notice; other messages are the share done."""


def run_child(
    settings: str, folder: str, arm: str, log: str, place: Place, pipe: Connection
) -> None:
    """Do one run in this process, or become torchrun where it has several GPUs."""
    _stop_once()
    _redirect(log)
    if place:
        os.environ[VISIBLE] = ",".join(place)
    if len(place) > 1:
        stop_with_parent()
        # The pipe is closed by this: the parent reads the progress from the run folder.
        os.execv(sys.executable, [*_torchrun(len(place)), settings, folder, arm])

    def send(message: str) -> None:
        try:
            pipe.send_bytes(message.encode())
        except BrokenPipeError:  # the comparison is gone: stop after this batch
            os.kill(os.getpid(), signal.SIGTERM)

    send_notices(lambda line: send(f"{NOTICE}{line}"))
    try:
        _run(settings, folder, arm, lambda done: send(f"{done}"))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except UserError as error:
        send(f"{ERROR}{one_line(error)}")
        sys.exit(1)


def _torchrun(n: int) -> list[str]:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return [sys.executable, *ranks, "-m", "real.compare.child"]


def _run(
    settings: str, folder: str, arm: str, report: Callable[[float], None] | bool = False
) -> None:
    from real.trainer import resume, train

    config = msgspec.json.decode(settings, type=TrainConfig)
    if (Path(folder) / FILE_NAME).is_file():
        resume(folder, config, report)
    else:
        train(config, folder, report, arm)


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


def main(arguments: Sequence[str]) -> int:
    """Do the part of one rank, given settings, folder and arm; returns the exit code."""
    settings, folder, arm = arguments
    try:
        with stops_raised():
            _run(settings, folder, arm)
    except UserError as error:
        print(f"guard-train: {one_line(error)}", file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
