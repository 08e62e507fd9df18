"""The end of all ranks when one of them fails.

A rank that waits in NCCL for another one that is gone waits for ever, and so does the clean-up of
its group. Therefore the first rank to fail writes the reason into the store that all ranks share.
A thread of every other rank reads it there, interrupts its rank, and ends the process if that is
stuck. For ranks that fail without a word see `real.ranks.others`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from lab.errors import UserError, exit_code, first_line, one_line
from lab.signals import STOP_SIGNALS
from real.model.memory import phase_of
from real.ranks.launched import Launched
from real.ranks.others import DIED, POLL_SECONDS, REASON, TOLD, Others

GRACE_SECONDS = 10.0
"""Time that a rank has to end by itself once another one has failed."""
_LOST_SECONDS = 2.0
"""Time in which the reason for a lost connection becomes known."""
_LINGER_SECONDS = 3.0
"""Longest time that a process waits, before it ends, for the others to know."""
_REMEDY = "go on with guard-train resume"
_PROJECT = f"{Path(__file__).parents[2]}{os.sep}"
_SIGNAL = getattr(signal, "SIGURG", None)
"""Interrupts the main thread. Nobody else sends it, and by default it does nothing."""


class RankFailed(BaseException):
    """Another rank has failed; the text names it and the reason."""


class Watch:
    """Notices the failure of any rank, and lets this one end."""

    def __init__(self, process: Launched, patience: float) -> None:
        """Start to watch; all ranks must call this.

        Args:
            process: this one, whose process group exists.
            patience: seconds that others may wait for a rank before it counts as hanging.
        """
        store: Any = dist.distributed_c10d._get_default_store()
        # A connection of its own: the main thread may hold the other one for minutes.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._agent_holds = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._process = process
        self._reason: str | None = None
        self._interrupted = False
        self._ending = False
        self._speaker = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._others = Others(self._store, process.rank, process.world, patience)
        self._handler = _handle(self._interrupt)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch."""
        self._over.set()
        self._thread.join()
        self._others.stop()
        if self._handler is not None and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._handler)

    def at_work(self) -> None:
        """Let the others wait on: what this rank waits for has given a sign of life."""
        self._others.n_signs += 1

    @contextlib.contextmanager
    def reasons(self) -> Iterator[None]:
        """Replace the error of a lost connection by its reason, if another rank has failed.

        Raises:
            RankFailed: another rank has failed.
        """
        try:
            yield
        except Exception as error:
            reason = self._found_within(_LOST_SECONDS) if is_lost(error) else None
            if reason is None:
                raise
            raise RankFailed(reason) from error

    def end(self, error: BaseException) -> NoReturn:
        """End this process because of an error, after the others were told.

        Nothing is cleaned up: the process group waits for ranks that will not answer.
        """
        self._ending = True
        _ignore_stops()
        if not isinstance(error, RankFailed):
            sentence = _sentence(self._process.rank, error)
            if self._is_first(sentence):
                if _unexpected(error):
                    traceback.print_exception(error)
                _print(sentence)
            self._linger()
        elif self._process.rank == 0:  # it may be the process that holds the store
            self._linger()
        elif self._speaker:
            self._outlive()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if isinstance(error, RankFailed) else exit_code(error))

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._others.look()
            if self._found() is None:
                continue
            self._others.end_stuck()
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline:
                if self._handler is not None and _SIGNAL is not None:
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
                if self._over.wait(POLL_SECONDS):
                    return
            sys.stderr.flush()
            os._exit(1)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise in the main thread, unless that is on its way out already."""
        if self._reason is None or self._interrupted or self._ending or sys.exc_info()[1]:
            return
        self._interrupted = True
        _ignore_stops()
        raise RankFailed(self._reason)

    def _found_within(self, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while (reason := self._found()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return reason

    def _found(self) -> str | None:
        """Return the reason of the first failure; None while there is none."""
        with self._lock:
            if self._reason is None:
                self._reason = self._look()
            return self._reason

    def _look(self) -> str | None:
        others, lost = self._others, self._others.lost()
        rank = min(lost, default=0)
        reason = f"rank {rank}: {lost.get(rank, DIED)}; {_REMEDY}"
        if others.reason is not None:
            if self._is_far(others.reason):
                _print(others.reason)
            return others.reason
        if others.hangs_here:
            reason = f"rank {self._process.rank}: {others.hangs}, {_place()}; {_REMEDY}"
            if not self._is_first(reason):
                return None  # it will be heard
            _print(reason)
            return reason
        if others.cut_off or others.mute or (0 in lost and not self._agent_holds):
            # It may not count as dead yet: connections close a little earlier.
            if self._speaks_without_store(lost or ([] if self._agent_holds else [0])):
                _print(reason)
            return reason
        if not lost or (others.paused(0) and not self._agent_holds):  # nothing can be asked of it
            return None
        far = rank not in others.neighbours
        if (far and not self._speaks_without_store(lost)) or not self._is_first(reason):
            return None  # it will be heard
        _print(reason)
        return reason

    def _speaks_without_store(self, lost: Iterable[int]) -> bool:
        """Return whether this is the first living rank of its machine."""
        living = {self._process.rank, *self._others.neighbours} - set(lost)
        self._speaker = self._process.rank == min(living)
        return self._speaker

    def _outlive(self) -> None:
        """Wait for the end of the other ranks of this machine: one of them would speak as well."""
        deadline = time.monotonic() + _LINGER_SECONDS
        others = self._others
        while len(others.dead()) < len(others.neighbours) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _is_far(self, reason: str) -> bool:
        """Return whether it was printed on another machine, and this rank is to repeat it."""
        found = re.match(r"rank (\d+):", reason)
        here = {self._process.rank, *self._others.neighbours}
        return self._process.local_rank == 0 and found is not None and int(found[1]) not in here

    def _is_first(self, reason: str) -> bool:
        """Give the reason to all ranks; return whether no other rank was first."""
        try:
            return self._store.compare_set(REASON, "", reason).decode() == reason
        except (RuntimeError, ValueError):
            return True

    def _linger(self) -> None:
        """Wait until the others know, before connections break."""
        deadline = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(RuntimeError, ValueError):
            alive = self._process.world - len(self._others.dead())
            while self._store.add(TOLD, 0) < alive and time.monotonic() < deadline:
                time.sleep(0.05)
        if self._process.rank == 0:  # others may be about to read the same number
            time.sleep(0.5)


def is_lost(error: BaseException) -> bool:
    """Return whether an error is that of a collective, so not this rank's own."""
    words = str(error).lower()
    known = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in words for word in known)
    )


def _place() -> str:
    """Return where the main thread is: the innermost line of this project, if there is one."""
    frame = innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not frame.f_code.co_filename.startswith(_PROJECT):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "nobody knows where"
    name = frame.f_code.co_filename.removeprefix(_PROJECT)
    return f"in {frame.f_code.co_name} ({name}:{frame.f_lineno})"


def _sentence(rank: int, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was written so far can be read"
    if is_lost(error):
        # Without the place in the library's source, and its guesses at the cause.
        reason = re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]
        return f"rank {rank}: lost the other ranks ({reason}); {_REMEDY}"
    reason = f"{type(error).__name__}: {first_line(error)}" if _unexpected(error) else str(error)
    return ": ".join(filter(None, [f"rank {rank}", phase_of(error), reason]))


def _unexpected(error: BaseException) -> bool:
    return not isinstance(error, (UserError, KeyboardInterrupt)) and not is_lost(error)


def _print(reason: str) -> None:
    with contextlib.suppress(OSError):
        print(f"guard-train: {one_line(reason)}", file=sys.stderr, flush=True)


def _handle(handler: Any) -> Any:
    """Set the handler of `_SIGNAL`; returns the one before, None where none can be set."""
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(_SIGNAL, handler)


def _ignore_stops() -> None:
    """Let no further signal disturb the end: `torchrun` sends one when a rank has failed."""
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            # Not SIG_IGN: Python complains of a pending signal without a function.
            signal.signal(number, lambda *_: None)
