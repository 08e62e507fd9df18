"""Signals that ask a process to end: Ctrl-C, SIGTERM, and SIGHUP of a terminal that was closed."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from lab.errors import Terminated

STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Clusters send SIGTERM before they take a machine back."""
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
    """Let SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C raises KeyboardInterrupt.

    Signals that are ignored, as SIGHUP is under nohup, stay ignored. Only the main thread can
    set handlers; in any other nothing changes.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOP_SIGNALS[1:]}
        before = {number: old for number, old in found.items() if old is signal.SIG_DFL}
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


def stop_with_parent() -> None:
    """Let this process get SIGTERM when the one that started it ends, even by kill -9.

    The wish outlives an exec. Only Linux has it; elsewhere nothing changes.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent.pid:  # it has ended already
        signal.raise_signal(signal.SIGTERM)
