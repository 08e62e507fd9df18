"""Signals that ask a process to end (Ctrl-C, SIGTERM, SIGHUP), and the first lines of all programs.

It imports next to nothing, so that a stop signal finds a program ready.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from lab.errors import Terminated

STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Clusters send SIGTERM before they take a machine back."""


class EndsAtOnce:
    """A signal handler that ends the process in one line.

    For times in which nothing is written and an exception would end in a traceback, such as
    imports: libraries turn a KeyboardInterrupt there into errors of their own.
    """

    def __init__(self, prog: str) -> None:
        """Keep the name of the program, which begins the line."""
        self.prog = prog

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{self.prog}: interrupted\n".encode())
        os._exit(128 + number)


@contextlib.contextmanager
def ends_at_once(prog: str) -> Iterator[None]:
    """Let stop signals end the process in one line; those that are ignored stay ignored.

    Only the main thread can set handlers; in any other nothing changes.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        before = {n: old for n, old in found.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, EndsAtOnce(prog))
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def enter(prog: str, commands: str, argv: Sequence[str] | None = None) -> int:
    """Import a program's commands and run its command line.

    Args:
        commands: module with `COMMANDS` and `ABOUT`, the first two arguments of
            `lab.cli.run_cli` after the program.
        argv: arguments after the program's name; those of the process if left out, and then stop
            signals end the process in one line until its work is done.

    Returns:
        The exit code.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(ends_at_once(prog))
        from lab.cli import run_cli

        module = importlib.import_module(commands)
        try:
            return run_cli(prog, module.COMMANDS, argv, module.ABOUT)
        finally:
            if argv is None:
                # Python resets its own handlers at its end, and a signal would then kill it.
                stack.pop_all()
                for number in STOP_SIGNALS:
                    if type(signal.getsignal(number)) is EndsAtOnce:
                        signal.signal(number, signal.SIG_IGN)


_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""


def stop(number: int, frame: FrameType | None = None) -> NoReturn:
    """Raise what a stop signal means; also a signal handler.

    Raises:
        KeyboardInterrupt: of SIGINT.
        Terminated: of every other signal.
    """
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


@contextlib.contextmanager
def stops_raised() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, and Ctrl-C KeyboardInterrupt.

    Signals that are ignored, as SIGHUP is under nohup, stay ignored. Only the main thread can
    set handlers; in any other nothing changes.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        ends = (n for n, old in found.items() if old is signal.SIG_DFL or type(old) is EndsAtOnce)
        before = {number: found[number] for number in ends}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def stops_held() -> Iterator[None]:
    """Hold stop signals back while processes start, which keep them blocked.

    A process that is still starting would die with a traceback, or could not be stopped cleanly.
    This process gets the signals afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_with_parent(number: int = signal.SIGTERM) -> None:
    """Let this process get a signal when the one that started it ends, even by kill -9.

    The wish outlives an exec. Only Linux has it; elsewhere nothing changes.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent.pid:  # it has ended already
        signal.raise_signal(number)
