"""Signals that ask a process to end: Ctrl-C, SIGTERM, SIGHUP.

It imports next to nothing, so that a stop signal finds a program ready.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NoReturn

from lab.base.errors import Terminated

STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Clusters send SIGTERM before they take a machine back."""
_CALLED_BACK, _AGAIN = "llvmlite", 0.05
"""Package that calls Python from C, where exceptions are lost; seconds to a signal's next try."""
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class EndsAtOnce:
    """A signal handler that ends the process in one line.

    For times in which nothing is written and an exception would end in a traceback, such as
    imports: libraries turn a KeyboardInterrupt there into errors of their own.
    """

    def __init__(self, prog: str) -> None:
        self.line = f"{prog}: interrupted\n".encode()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, self.line)
        os._exit(128 + number)


def handlers() -> dict[signal.Signals, Any]:
    """The handlers of stop signals, of which only the main thread can set others."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in STOP_SIGNALS}


@contextlib.contextmanager
def handled(handle: Any, after: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Let signals be handled by `handle`, and then by the handlers that they have in `after`."""
    for number in after:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in after.items():
            signal.signal(number, old or signal.SIG_DFL)


def ends_at_once(prog: str, last: bool = False) -> AbstractContextManager[None]:
    """Let stop signals end the process in one line; those that are ignored stay ignored.

    Args:
        last: ignore them afterwards: Python's end resets its handlers, and a signal would kill it.
    """
    before = {n: old for n, old in handlers().items() if old not in (signal.SIG_IGN, None)}
    return handled(EndsAtOnce(prog), dict.fromkeys(before, signal.SIG_IGN) if last else before)


def handle_stop(number: int, frame: FrameType | None) -> None:
    """Raise what a stop signal means, deferred until a callback from C returns."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == _CALLED_BACK:
            later = threading.Timer(_AGAIN, signal.pthread_kill, (threading.get_ident(), number))
            later.daemon = True
            later.start()
            return
        frame = frame.f_back
    stop(number)


def stop(number: int) -> NoReturn:
    """Raise KeyboardInterrupt for SIGINT, and `Terminated` for every other stop signal."""
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def stops_raised() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, and Ctrl-C KeyboardInterrupt.

    Signals that are ignored, as SIGHUP is under nohup, stay ignored.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {n: h for n, h in handlers().items() if h in usual or type(h) is EndsAtOnce}
    return handled(handle_stop, before)


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
