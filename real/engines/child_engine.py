"""An engine in a process of its own, which is killed when it hangs."""

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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import torch

from lab.base.errors import UserError
from real.engines.child import (
    REQUEST,
    ROLLOUTS,
    child_environment,
    read_rollouts,
    receive,
    send,
)
from real.engines.rollouts import (
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    Sampling,
    Stages,
    seeded_request,
)
from real.engines.weight_transfer import writing
from real.engines.weights import NO_WEIGHTS, Room, WeightSender, exchange_folder
from real.ranks.distributed import ALONE, Ranks

COMMAND = (sys.executable, "-m", "real.engines.child")
_CLOSE_SECONDS = 5.0


class ChildEngine:
    """The parent of the engine's process: starts it, sends requests, and ends it.

    Death and hangs raise `EngineDied` within the time limit; after that the process and all that
    it started are gone, and only `close` can be called.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout: float,
        device: torch.device | str = "cpu",
        weights_dtype: torch.dtype | None = None,
        room: Room = NO_WEIGHTS,
        exchange: str | None = None,
        ranks: Ranks = ALONE,
        command: Sequence[str] = (*COMMAND, "vllm"),
        log: Path | None = None,
        request: Callable[..., Any] = seeded_request,
        queues: bool = True,
    ) -> None:
        """Start the process and wait until the engine is ready.

        Args:
            settings: of the engine, plain values.
            timeout: seconds that may pass without a sign of life. The longest intervals without
                one are the start, falling asleep, and one step of decoding.
            device: of the trainer, and of the engine if it is a GPU.
            weights_dtype: dtype in which weights are sent; unchanged if None.
            exchange: folder for requests, rollouts and weights, see `exchange_folder`.
            ranks: of the run, which send the weights together.
            log: file to which its output is appended; a temporary one if None.
            request: makes what the engine needs to sample, see `seeded_request`.
            queues: see `Engine`.

        Raises:
            EngineDied: it did not start.
            UserError: the engine refuses its settings, or the folder cannot be written.
        """
        self.device = torch.device(device)
        self.timeout = timeout
        self.queues, self._request = queues, request
        self._log_path = log
        self._log = _opened(log)
        self._folder = exchange_folder(room, exchange)
        self._pad_token_id = int(settings.get("pad_token_id", 0))
        self._n_gpus = int(settings.get("n_gpus", 1))
        self._sender = WeightSender(
            self._folder,
            self.device,
            weights_dtype,
            ranks,
            self._n_gpus,
            self._hand,
            bool(settings.get("adapter_rank")),
        )
        self._ended = False
        self._process, self._pipe = self._start(command)
        try:
            self._write_request(settings)
            self._sender.refused = self._ask({"do": "start"})["refused_adapters"]
        except BaseException:
            self.close()
            raise

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Sample `n` responses to each prompt, or those of one rank: see `Shareable`.

        Raises:
            UserError: a prompt is empty or too long.
            EngineError: the engine has no weights of the trainer's.
            EngineDied: it died or hung.
        """
        self._write_request(self._request(prompts, n, sampling, generator, share))
        answer = self._ask({"do": "sample"})
        path = self._folder / ROLLOUTS
        return read_rollouts(path, int(answer["version"]), self._pad_token_id)

    def release(self) -> None:
        """Free the GPU's memory."""
        self._ask({"do": "release"})

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the model's weights; see `WeightSender.send`."""
        return self._sender.send(model, version)

    def close(self) -> None:
        """End the process; may be called twice."""
        if not self._ended:
            with contextlib.suppress(OSError):
                send(self._pipe, {"do": "close"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log.close()
        log = self._log_path
        if log is not None and log.exists() and not log.stat().st_size:
            log.unlink()
            with contextlib.suppress(OSError):  # of a run that was refused
                log.parent.rmdir()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def _start(self, command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        arguments = [*command, str(theirs.fileno()), str(self._folder), str(os.getpid())]
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=child_environment(self.device, self._n_gpus),
            # Ctrl-C reaches the trainer alone, and the whole group can be killed at once.
            start_new_session=True,
        )
        theirs.close()
        return process, ours

    def _write_request(self, request: Any) -> None:
        path = self._folder / REQUEST
        with writing(path):
            path.write_text(json.dumps(request))

    def _hand(self, message: Mapping[str, Any], entries: Sequence[Any]) -> dict[str, Any]:
        self._write_request(entries)
        return self._ask(message)

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        doing = message["do"]
        if self._ended:
            raise EngineDied("engine: its process has ended")
        try:
            send(self._pipe, message)
            answer = self._wait(doing)
        except (EOFError, OSError) as error:
            raise self._dead(doing) from error
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

    def _dead(self, doing: str) -> EngineDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self._kill()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return EngineDied(f"engine: its process died during {doing} ({how}){self._last_line()}")

    def _last_line(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f", its last line: {lines[-1].strip()[:300]}{self._where()}" if lines else ""

    def _where(self) -> str:
        """Return the path of the log, if it is a file that stays and holds anything."""
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
    """Open a log to be appended to, in a folder that may have to be made; None for no file to keep.

    Raises:
        UserError: it cannot be written.
    """
    if log is None:
        return tempfile.TemporaryFile()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("a+b")
    except OSError as error:
        raise UserError(
            f"{log}: cannot be written ({error.strerror}); choose a folder you may write to"
        ) from error
