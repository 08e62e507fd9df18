"""An engine in a process of its own, which can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load_file

from lab.base.errors import UserError
from real.engines.exchange import REQUEST, ROLLOUTS, receive, send, writing
from real.engines.rollouts import (
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    Sampling,
    seeded_request,
)
from real.engines.weights import LOCAL, NO_WEIGHTS, Room, Route, WeightSender, exchange_folder
from real.ranks.distributed import ALONE

COMMAND = (sys.executable, "-m", "real.engines.child")
_CLOSE_SECONDS, _EXIT_SECONDS = 5.0, 60.0
"""To be waited for by an engine that is asked to end, and by one that has begun to: if killed too
early its exit code is lost."""
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC", "GROUP_", "LOCAL_")
"""Variables that are not passed on: an engine belongs to one rank and must not join the group."""


class ChildEngine:
    """The parent of the engine's process: starts it, sends requests, and ends it.

    Death and hangs raise `EngineDied` within the time limit; after that the process and all that
    it started are gone, and only `close` can be called.
    """

    share = ALONE.share

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout: float,
        route: Route = LOCAL,
        room: Room = NO_WEIGHTS,
        exchange: str | None = None,
        command: Sequence[str] = (*COMMAND, "real.engines.vllm_engine:vllm_host"),
        log: Path | None = None,
        request: Callable[..., Any] = seeded_request,
    ) -> None:
        """Start the process and wait until the engine is ready.

        `timeout` is the most seconds without a sign of life; the longest intervals without one are
        the start, falling asleep, and one step of decoding. `room` and the folder `exchange` are
        those of `exchange_folder`. The output is appended to `log`, a temporary file if None.
        """
        self.timeout = timeout
        self._request, self._log_path, self._log = request, log, _opened(log)
        self._folder = exchange_folder(room, exchange)
        self._pad_token_id = int(settings.get("pad_token_id", 0))
        self.sender = WeightSender(self._folder, route, self._hand)
        self.update_weights = self.sender.update_weights
        self._ended = False
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(self._folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=_environment(route),
            # Ctrl-C reaches the trainer alone, and the whole group can be killed at once.
            start_new_session=True,
        )
        theirs.close()
        self.pid = self._process.pid
        try:
            self.sender.refused = self._hand({"do": "start"}, settings)["refused_adapters"]
        except BaseException:
            self.close()
            raise

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        request = self._request(prompts, n, sampling, generator, self.share)
        answer = self._hand({"do": "sample"}, request)
        path = self._folder / ROLLOUTS
        fields = load_file(path)
        path.unlink()
        return Rollouts.unpacked(fields, int(answer["version"]), self._pad_token_id)

    def release(self) -> None:
        self._ask({"do": "release"})

    def close(self) -> None:
        if not self._ended:
            with contextlib.suppress(OSError):
                send(self._pipe, {"do": "close"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
        self._kill()
        self.sender.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log.close()
        log = self._log_path
        if log is not None and log.exists() and not log.stat().st_size:
            log.unlink()
            with contextlib.suppress(OSError):  # of a run that was refused
                log.parent.rmdir()

    def _hand(self, message: Mapping[str, Any], request: Any) -> dict[str, Any]:
        """Send a message about a request that is too long for the pipe."""
        path = self._folder / REQUEST
        with writing(path):
            path.write_text(json.dumps(request))
        return self._ask(message)

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        doing = message["do"]
        if self._ended:
            raise EngineDied("engine: its process has ended")
        try:
            send(self._pipe, message)
            answer = self._wait(doing)
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_SECONDS)
            self._kill()
            code, line = self._process.returncode, self._last_line()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise EngineDied(f"engine: its process died during {doing} ({how}){line}") from error
        if "error" in answer:
            if answer["kind"] == "died":
                self._kill()
                raise EngineDied(f"{answer['error']}{self._where()}")
            raise EngineError(answer["error"])
        return answer

    def _wait(self, doing: str) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout
        while self._pipe.poll(max(0.0, deadline - time.monotonic())):
            answer = receive(self._pipe)
            if "alive" not in answer:
                return answer
            deadline = time.monotonic() + self.timeout
        self._kill()
        raise EngineDied(
            f"engine: no sign of life for {self.timeout:g} s during {doing}, its process was "
            f"killed{self._last_line()}; raise engine_timeout if it only needs more time"
        )

    def _last_line(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f", its last line: {lines[-1].strip()[:300]}{self._where()}" if lines else ""

    def _where(self) -> str:
        log = self._log_path
        return f"; log: {log}" if log is not None and log.stat().st_size else ""

    def _kill(self) -> None:
        """Kill the process and all that it started; only once, since process ids are reused."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()


def _opened(log: Path | None) -> BinaryIO:
    if log is None:
        return tempfile.TemporaryFile()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("a+b")
    except OSError as error:
        raise UserError(
            f"{log}: cannot be written ({error.strerror}); choose a folder you may write to"
        ) from error


def _environment(route: Route) -> dict[str, str]:
    """Return the process's environment; its GPUs follow the trainer's, which is the first."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_TORCHRUN)}
    environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # into the log
    # Huge pages: on a CPU vLLM packs all weights into new memory after each update.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if route.device.type == "cuda":
        # The engine sees only its own GPUs, this rank's as the first one.
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        first = torch.cuda.current_device()
        seen = [visible[i] if visible else str(i) for i in range(first, first + route.n_gpus)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
    return environment
