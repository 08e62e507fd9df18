"""The other end of `child.py`: a process that is started when it is first needed, and killable."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.base.errors import UserError, install

_SCRIPT = Path(__file__).with_name("child.py")
_START_SECONDS = 300.0
_PATIENCE = 30.0
"""Wall seconds per CPU second of a limit, and at least: only for a process that is stuck."""
_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The checker's result."""

    value: Any
    """A key, a verdict, or None where the formulas cannot be read."""
    cpu: float
    given_up: bool = False
    """It was killed at its time or memory limit, so there is no value."""


class Checker:
    """Runs math-verify in a process of its own, which the first question starts."""

    def __init__(self, memory_mib: int = 2048) -> None:
        """Start nothing yet; the process may use so much address space."""
        self._memory_mib = memory_mib
        self._channel: Connection | None = None
        self._owner = 0
        self._stop: weakref.finalize[..., Any] | None = None
        self._n_asked = 0
        self.pid: int | None = None
        self.n_started = 0  # processes

    def ask(self, do: str, texts: tuple[str, ...], limit: float) -> Reply:
        """Return the `key` of one formula, or whether two are the `same`; within CPU seconds."""
        channel = self._running()
        self._n_asked += 1
        request = {"id": self._n_asked, "do": do, "texts": texts, "limit": limit}
        patience = max(1.0, limit) * _PATIENCE
        try:
            while channel.poll():  # said unasked: a worker was killed while it had nothing to do
                channel.recv_bytes()
            channel.send_bytes(json.dumps(request).encode())
            reply = self.read(patience)
            while reply.get("id", self._n_asked) != self._n_asked:
                reply = self.read(patience)
        except (OSError, EOFError):
            self.close()
            return Reply(None, limit, given_up=True)
        except BaseException:
            # Its answer would be taken for that to the next question.
            self.close()
            raise
        if "killed" in reply:
            return Reply(None, limit, given_up=True)
        return Reply(reply["value"], reply["cpu"])

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._stop is not None:
            self._stop()
        self._channel = self._stop = self.pid = None

    def _running(self) -> Connection:
        if self._channel is not None and self._owner == os.getpid():
            return self._channel
        self._channel, theirs = multiprocessing.Pipe()
        self._owner = os.getpid()
        process = subprocess.Popen(
            # -P: modules in the script's folder must not hide others.
            [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno()), str(self._memory_mib)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to this process alone
        )
        theirs.close()
        self._stop = weakref.finalize(self, _end, process, self._channel, self._owner)
        self.pid = process.pid
        self.n_started += 1
        self._await_start()
        return self._channel

    def _await_start(self) -> None:
        try:
            ready = self.read(_START_SECONDS)
        except (OSError, EOFError):
            ready = {"error": "its process did not start"}
        except BaseException:
            self.close()
            raise
        if "error" in ready:
            self.close()
            raise UserError(
                f"answer_check = math: math-verify failed ({ready['error']}); install it with "
                f"{install('answers')} or set answer_check = strings"
            )

    def read(self, seconds: float) -> dict[str, Any]:
        """What the process says next; TimeoutError if that is nothing, EOFError if it has ended."""
        assert self._channel is not None
        if not self._channel.poll(seconds):
            raise TimeoutError
        return json.loads(self._channel.recv_bytes())


def _end(process: subprocess.Popen[bytes], channel: Connection, owner: int) -> None:
    """End a process and its worker, and wait for it; nothing in a fork of the owner."""
    if os.getpid() != owner:
        return
    channel.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
