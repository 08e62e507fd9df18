"""Signals to stop: the run continues to the end of its batch, writes a checkpoint, and ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from lab.signals import STOP_SIGNALS, stop

_NOTICE = (
    b"\nstopping after this batch, with a checkpoint; press Ctrl-C again to stop without waiting\n"
)
_SAME_PRESS = 1.0
"""Seconds within which further signals are taken for the first one.

A terminal sends Ctrl-C to all processes, and a parent then often passes it on to its children.
"""


class StopRequest:
    """A request to stop the run, if any."""

    def __init__(self) -> None:
        self.deferred = False
        """Let the first signal wait for `leave_if`; set once there is a checkpoint to add to."""
        self.asked: signal.Signals | None = None
        self._asked_at = 0.0

    def agreed(self, highest: Callable[[int], int]) -> signal.Signals | None:
        """Return the signal that asked for the end so far, if any.

        Args:
            highest: returns the largest of all ranks' numbers, since signals do not reach all ranks
                at the same moment.
        """
        number = highest(self.asked or 0)
        return signal.Signals(number) if number else None

    def leave_if(self, asked: signal.Signals | None) -> None:
        """End the run, at a point where all its work is on disk.

        Args:
            asked: from `agreed`.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
            Terminated: another signal came.
        """
        if asked is not None:
            stop(asked)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.asked is not None and now - self._asked_at < _SAME_PRESS:
            return
        if not self.deferred or self.asked is not None:
            stop(number)
        self.asked, self._asked_at = signal.Signals(number), now
        # Not print: the signal may have come in the middle of one, which cannot be entered twice.
        # The parent of a comparison's runs prints the notice for them.
        if multiprocessing.parent_process() is None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, _NOTICE)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the signals that ask a process to stop; possible in the main thread only."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    # Signals that are ignored, as under nohup, stay ignored.
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, request.handle)
    try:
        yield request
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)
