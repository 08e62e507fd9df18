"""Engines around others: in a killable process of its own, restarted if it died, one a rank."""

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
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from lab.base.errors import UserError
from real.engines.exchange import REQUEST, ROLLOUTS, receive, send, writing
from real.engines.rollouts import (
    Engine,
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    Sampling,
    Stages,
    seeded_request,
    shard_requests,
)
from real.engines.weights import NO_WEIGHTS, Room, WeightSender, exchange_folder
from real.ranks.distributed import ALONE, Ranks, whole_tensor

COMMAND = (sys.executable, "-m", "real.engines.child")
_CLOSE_SECONDS = 5.0
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC", "GROUP_", "LOCAL_")
"""Variables that are not passed on: an engine belongs to one rank and must not join the group."""
T = TypeVar("T")


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
            timeout: seconds that may pass without a sign of life. The longest intervals without
                one are the start, falling asleep, and one step of decoding.
            device: of the trainer, and of the engine if it is a GPU.
            weights_dtype: dtype in which weights are sent; unchanged if None.
            exchange: folder for requests, rollouts and weights, see `exchange_folder`.
            log: file to which its output is appended; a temporary one if None.
            request: makes what the engine needs to sample, see `seeded_request`.
        """
        self.timeout = timeout
        self.queues, self._request = queues, request
        self._log_path, self._log = log, _opened(log)
        self._folder = exchange_folder(room, exchange)
        self._pad_token_id = int(settings.get("pad_token_id", 0))
        device, n_gpus = torch.device(device), int(settings.get("n_gpus", 1))
        adapters = bool(settings.get("adapter_rank"))
        self._sender = WeightSender(
            self._folder, device, weights_dtype, ranks, n_gpus, adapters, self._hand
        )
        self._ended = False
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(self._folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=_environment(device, n_gpus),
            # Ctrl-C reaches the trainer alone, and the whole group can be killed at once.
            start_new_session=True,
        )
        theirs.close()
        try:
            self._sender.refused = self._hand({"do": "start"}, settings)["refused_adapters"]
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
        """Sample `n` responses to each prompt, or as (M, 1) responses those of one rank."""
        request = self._request(prompts, n, sampling, generator, share)
        answer = self._hand({"do": "sample"}, request)
        path = self._folder / ROLLOUTS
        fields = load_file(path)
        path.unlink()
        return Rollouts.unpacked(fields, int(answer["version"]), self._pad_token_id)

    def release(self) -> None:
        """Free the GPU's memory."""
        self._ask({"do": "release"})

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the model's weights."""
        return self._sender.update_weights(model, version)

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
    """Open a log to be appended to, in a folder that may have to be made."""
    if log is None:
        return tempfile.TemporaryFile()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("a+b")
    except OSError as error:
        raise UserError(
            f"{log}: cannot be written ({error.strerror}); choose a folder you may write to"
        ) from error


def _environment(device: torch.device, n_gpus: int) -> dict[str, str]:
    """Return the process's environment; its GPUs follow the trainer's, which is the first."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_TORCHRUN)}
    environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # into the log
    # Huge pages: on a CPU vLLM packs all weights into new memory after each update.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if device.type == "cuda":
        # The engine sees only its own GPUs, this rank's as the first one.
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        index = torch.cuda.current_device() if device.index is None else device.index
        seen = [visible[i] if visible else str(i) for i in range(index, index + n_gpus)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
    return environment


class RestartingEngine:
    """Replaces an engine that died or hung, gives the new one the last weights, and asks again.

    The new engine gets the same random numbers as the old one, so the run is not changed.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int) -> None:
        """Make the first engine; `restarts` is the number of further ones that may be made."""
        self._make = make
        self.left = restarts
        self.notice: Callable[[str], object] = warnings.warn
        """Called with a sentence when an engine is started again."""
        self._last: tuple[Any, int] | None = None
        self.engine: Engine = make()

    @property
    def queues(self) -> bool:
        """As that of the engine."""
        return self.engine.queues

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt."""
        state = generator.get_state()

        def draw(engine: Engine) -> Rollouts:
            generator.set_state(state)
            return engine.sample(prompts, n, sampling, generator)

        return self._with_restarts(draw)

    def release(self) -> None:
        """Free memory for an update. An engine that died has freed all it had."""
        self._with_restarts(lambda engine: engine.release())

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the weights, and keep a reference to them."""
        # Set before the attempt: if it fails, the next engine must get these and no older ones.
        self._last = (model, version)
        return self._with_restarts(lambda engine: engine.update_weights(model, version))

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def _with_restarts(self, do: Callable[[Engine], T]) -> T:
        died = False
        while True:
            try:
                if died:
                    self.engine.close()
                    self.engine = self._make()
                    if self._last is not None:
                        self.engine.update_weights(*self._last)
                return do(self.engine)
            except EngineDied as error:
                if not self.left:
                    raise
                self.left -= 1
                died = True
                self.notice(f"{error}; starting another engine, {self.left} more allowed")


_NO_VERSION = -(2**31)
"""Version of a rank without a response."""


class RankedEngine:
    """One engine a rank: each samples the responses dealt to it, and gets those of all ranks.

    Where groups of ranks share engines, responses are dealt to the first rank of each group.
    """

    def __init__(
        self, engine: Any, ranks: Ranks, pad_token_id: int, copy: Any | None = None, group: int = 1
    ) -> None:
        """Set up.

        Args:
            engine: of this rank; its `sample` takes rank and number of ranks as a last argument,
                and gives (M, 1) responses with the draws that they have among all.
            copy: an unsharded copy of the trained model, if the engine samples with a model of this
                process. Ranks decode different numbers of steps, and each pass of a sharded model
                needs all of them.
            group: ranks that share an engine; divides their number.
        """
        self.engine, self._ranks, self._copy = engine, ranks, copy
        self._group = group
        self._pad_token_id = pad_token_id

    @property
    def queues(self) -> bool:
        """As that of the engines."""
        return self.engine.queues

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with the draws of a single engine."""
        part = self.sample_part(prompts, n, sampling, generator)
        return self.gathered(part, len(prompts), n, sampling)

    def gathered(self, part: Rollouts, n_prompts: int, n: int, sampling: Sampling) -> Rollouts:
        """Return the (P, n) responses of all ranks; all must call this, with `sample_part`'s."""
        longest = self._ranks.highest(part.tokens_PNT.shape[2])
        parts = [self._dealt(n_prompts, n, rank) for rank in range(self._ranks.world)]
        most = max(map(len, parts))

        def together(values: Tensor, fill: float = 0) -> Tensor:
            """Gather (M, 1) or (M, 1, T) values of all ranks, each padded to as many rows."""
            room = (0, longest - values.shape[2]) if values.ndim == 3 else ()
            size = (*room, 0, 0, 0, most - len(values))
            gathered = self._ranks.gather(torch.nn.functional.pad(values, size, value=fill))
            return gathered.flatten(0, 1)

        def optional(values: Tensor | None) -> Tensor | None:
            """Gather a field that engines may leave out; ranks without a response take part."""
            if not sampling.stats or not self._ranks.highest(values is not None):
                return None
            return together(part.lengths_PN.double() if values is None else values)

        found = Rollouts(
            together(part.tokens_PNT, self._pad_token_id),
            together(part.logprobs_PNT),
            together(part.lengths_PN),
            together(part.finished_PN.byte()).bool(),
            self._one_version(part.version),
            optional(part.entropy_PV),
            optional(part.certainty_PV),
        )
        place = {p: r * most + row for r, own in enumerate(parts) for row, p in enumerate(own)}
        # Pairs of prompt and number, in the order of the prompts.
        return found.arranged(torch.tensor([place[pair] for pair in sorted(place)]), n)

    def release(self) -> None:
        """Give up memory for an update."""
        self.engine.release()
        if self._group > 1:
            self._ranks.wait()  # until the engine has left the GPUs of the whole group

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> Stages:
        """Send the weights, gathered one by one."""
        if self._copy is None:
            return self.engine.update_weights(model, version)
        for trained, sampled in zip(model.parameters(), self._copy.parameters(), strict=True):
            if trained.requires_grad:
                sampled.copy_(whole_tensor(trained))
        return self.engine.update_weights(self._copy, version)

    def close(self) -> None:
        """Stop for good."""
        self.engine.close()

    def sample_part(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample this rank's responses; nothing where there are fewer of them than ranks."""
        if self._dealt(len(prompts), n, self._ranks.rank):
            share = self._ranks.rank // self._group, self._ranks.world // self._group
            found = self.engine.sample(prompts, n, sampling, generator, share)
            # The only engine gives them prompt by prompt.
            return found.arranged(torch.arange(found.lengths_PN.numel()), 1)
        empty = torch.zeros((0, 1, 0), dtype=torch.int64)
        return Rollouts(empty, empty.float(), empty.sum(2), empty.sum(2).bool(), _NO_VERSION)

    def _dealt(self, n_prompts: int, n: int, rank: int) -> list[tuple[int, int]]:
        """Return prompt and number of the responses that a rank samples."""
        if rank % self._group:
            return []
        return shard_requests(n_prompts, n, (rank // self._group, self._ranks.world // self._group))

    def _one_version(self, version: int) -> int:
        """Return the version of all ranks that sampled anything."""
        first, *others = {*self._ranks.gather(torch.tensor(version)).tolist()} - {_NO_VERSION}
        if others:
            listed = ", ".join(map(str, sorted([first, *others])))
            raise EngineError(f"engines: they sampled with versions {listed} of the weights")
        return first
