"""Start Python programs in a process that has imported what they need: no start imports torch.

The server forks twice. The program, whose own parent ends at once, so becomes a child of the
process that asked for it, which waits for it and signals it as one that it started itself. This
needs Linux; elsewhere programs start from nothing.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

VLLM = (
    "real.engines.vllm_host",
    "vllm.entrypoints.llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen2",
)
"""Imports of an engine's process with vLLM, on the way to its first model."""
_ADOPT = 36
"""PR_SET_CHILD_SUBREAPER of prctl."""
_HIGH = 512
"""Descriptors from here on are in nobody's way."""


class Program:
    """What `subprocess.Popen` gives, as far as `ChildEngine` uses it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            done, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            else:
                time.sleep(0.01)
        return self.returncode


@contextmanager
def forked(
    module: Any, imports: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Let `module.subprocess.Popen` fork its programs, from a server that has imported modules.

    Without modules the server is forked as well, from this process, which must have no threads.
    """
    if sys.platform != "linux":
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if imports:
        command = [sys.executable, __file__, str(theirs.fileno()), *imports]
        wait = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=dict(environment), start_new_session=True
        ).wait
    elif server := os.fork():
        wait = Program(server).wait
    else:
        ours.close()
        leave(ended(serve(theirs)))
    theirs.close()

    def popen(
        arguments: Sequence[str], *, stdout: Any, env: dict[str, str], pass_fds: Any, **_: Any
    ) -> Program:
        assert arguments[0] == sys.executable
        request = {"arguments": arguments[1:], "environment": env, "descriptors": [*pass_fds]}
        CDLL(None).prctl(_ADOPT, 1)
        socket.send_fds(ours, [json.dumps(request).encode()], [stdout.fileno(), *pass_fds])
        answer = ours.recv(64)
        CDLL(None).prctl(_ADOPT, 0)
        return Program(int(answer))

    stand_in = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "subprocess", stand_in)
            yield
    finally:
        ours.close()
        wait()


def serve(asked: socket.socket) -> list[str]:
    """Fork a program per request; returns its arguments in its process, and [] at the end."""
    while True:
        content, descriptors, *_ = socket.recv_fds(asked, 2**20, 16)
        if not content:
            return []
        read, write = os.pipe()
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            if pid := os.fork():
                os.write(write, str(pid).encode())
                os._exit(0)
            request = json.loads(content)
            prepare(request, descriptors, asked)
            while os.getppid() == middle:
                time.sleep(0.001)
            return request["arguments"]
        os.waitpid(middle, 0)
        # Only now the program has another parent.
        asked.send(os.read(read, 64))
        descriptors += [read, write]
        for descriptor in descriptors:
            os.close(descriptor)


def prepare(request: dict[str, Any], descriptors: list[int], asked: socket.socket) -> None:
    """A session, environment and descriptors as those of a process that was started anew."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in descriptors]
    asked.close()
    os.closerange(3, _HIGH)
    for descriptor, place in zip(kept, [1, *request["descriptors"]], strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.dup2(1, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(words: list[str]) -> int:
    """Run a program as Python runs its command line; returns its exit code."""
    try:
        if words[:1] == ["-c"]:
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        elif words[:1] == ["-m"]:
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """Without taking apart all that was imported, which takes half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    code = ended(serve(socket.socket(fileno=int(sys.argv[1]))))
    atexit._run_exitfuncs()
    leave(code)
