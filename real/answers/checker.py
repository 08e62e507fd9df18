"""The other end of `child.py`: a process that is started when it is first needed, and killable."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.errors import UserError

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
    """CPU seconds it took."""
    given_up: bool = False
    """It was killed at its time or memory limit, so there is no value."""


class Checker:
    """Runs math-verify in a process of its own.

    The process is started with the first question and ends with `close`, with this object, or
    with the program. A program that was forked starts a process of its own.
    """

    def __init__(self, memory_mib: int = 2048) -> None:
        """Start nothing yet.

        Args:
            memory_mib: address space that the process may use.
        """
        self._memory_mib = memory_mib
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._stop: weakref.finalize[..., Any] | None = None
        self._pending = b""
        self._n_asked = 0
        self.n_started = 0
        """Processes started so far."""

    @property
    def pid(self) -> int | None:
        """Process id of the running process."""
        return None if self._process is None else self._process.pid

    def ask(self, do: str, texts: tuple[str, ...], limit: float) -> Reply:
        """One question.

        Args:
            do: `key` of one formula, or whether two are the `same`.
            texts: formulas as `screen.formula` returns them.
            limit: CPU seconds.

        Raises:
            UserError: math-verify is not installed or cannot start.
        """
        process = self._running()
        self._n_asked += 1
        request = {"id": self._n_asked, "do": do, "texts": texts, "limit": limit}
        try:
            assert process.stdin is not None
            self._drain()
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            reply = self._read(max(1.0, limit) * _PATIENCE)
            while reply.get("id", self._n_asked) != self._n_asked:
                reply = self._read(max(1.0, limit) * _PATIENCE)
        except (BrokenPipeError, TimeoutError, EOFError):
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
        self._process, self._stop, self._pending = None, None, b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        self._pending = b""
        self._owner = os.getpid()
        self._process = process = subprocess.Popen(
            # -P: modules in the script's folder must not hide others.
            [sys.executable, "-P", str(_SCRIPT), str(self._memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to this process alone
        )
        self._stop = weakref.finalize(self, _end, process, self._owner)
        self.n_started += 1
        self._await_start()
        return process

    def _await_start(self) -> None:
        try:
            ready = self._read(_START_SECONDS)
        except (TimeoutError, EOFError):
            ready = {"error": "its process did not start"}
        except BaseException:
            self.close()
            raise
        if "error" in ready:
            self.close()
            raise UserError(
                f"answer_check = math: math-verify failed ({ready['error']}); install it with "
                "pip install 'ttrl-guard-lab[real]' or set answer_check = strings"
            )

    def _drain(self) -> None:
        """Pass over what was said unasked: that a worker was killed while it had nothing to do."""
        with contextlib.suppress(TimeoutError):
            while True:
                self._read(0.0)

    def _read(self, seconds: float) -> dict[str, Any]:
        """The next line of the process.

        Raises:
            TimeoutError: none came in time.
            EOFError: the process has ended.
        """
        assert self._process is not None and self._process.stdout is not None
        number, end = self._process.stdout.fileno(), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(number, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                received = os.read(number, 65536)
                if not received:
                    raise EOFError
                self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process and its worker, and wait for it; nothing in a fork of the owner."""
    if os.getpid() != owner:
        return
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
