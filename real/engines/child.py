"""The process of an engine, and the exchange with its parent.

Parent and child exchange short JSON messages over a pipe. They always fit into its buffer, so that
writing one cannot block, even if the other side has stopped reading. Requests and rollouts are
files in a folder, in memory (`/dev/shm`) where there is room; weights come in buckets of memory
(`real.engines.weight_transfer`). Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from lab.base.errors import UserError
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling
from real.engines.weight_transfer import ADAPTERS, Delivery, Entry, Handle, Sent, opened, writing

REQUEST = "request.json"
ROLLOUTS = "rollouts.safetensors"
_ALIVE_SECONDS = 1.0
"""Least time between two signs of life."""
_PARENT_SECONDS = 1.0
"""Time between two checks that the parent lives."""
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC", "GROUP_", "LOCAL_")
"""Variables that are not passed on: an engine belongs to one rank and must not join the group."""


def child_environment(device: torch.device, n_gpus: int = 1) -> dict[str, str]:
    """Return the environment that the parent starts the process in.

    Args:
        n_gpus: of the engine; they follow the trainer's, which is the first.
    """
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


class Host(Protocol):
    """An engine within its process, such as `real.engines.vllm_host.VllmHost`."""

    @property
    def sample(self) -> Callable[..., Rollouts]:
        """Sample what the parent's request names, and call `progress` now and then."""
        ...

    def load(self, weights: Delivery, version: int) -> None:
        """Replace all weights."""
        ...

    def refusal(self, buckets: list[Handle]) -> str | None:
        """Return why buckets of the trainer cannot be opened; None if they can."""
        ...

    def release(self) -> None:
        """Free memory."""
        ...


def send(pipe: Connection, message: Mapping[str, Any]) -> None:
    """Send one short message."""
    pipe.send_bytes(json.dumps(message).encode())


def receive(pipe: Connection) -> dict[str, Any]:
    """Wait for one message."""
    return json.loads(pipe.recv_bytes())


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """Write rollouts to a file, without padding and without their version, which the message holds.

    Raises:
        UserError: the folder has no room for them.
    """
    with writing(path):
        save_file(rollouts.packed(), path)


def read_rollouts(path: Path, version: int, pad_token_id: int = 0) -> Rollouts:
    """Read rollouts and delete the file.

    Args:
        version: of the weights that drew them.
        pad_token_id: fills the positions after a response's end.
    """
    fields = load_file(path)
    path.unlink()
    return Rollouts.unpacked(fields, version, pad_token_id)


def _parts(pipe: Connection, folder: Path, message: Mapping[str, Any]) -> Iterator[Sent]:
    """Yield what is in the buckets, again and again.

    Args:
        pipe: brings word of the next contents.
        folder: holds their list, in place of a request.
    """
    while True:
        entries = [Entry(*values) for values in json.loads((folder / REQUEST).read_text())]
        yield Sent(message["buckets"], entries, message["last"])
        if message["last"]:
            return
        send(pipe, {"taken": len(entries)})
        message = receive(pipe)


def main(make_host: Callable[[dict[str, Any]], Host], arguments: Sequence[str]) -> None:
    """Serve an engine until the parent closes it or is gone.

    Args:
        make_host: makes the engine from its settings.
        arguments: file descriptor of the pipe, exchange folder, process id of the parent.
    """
    pipe, folder, parent = Connection(int(arguments[0])), Path(arguments[1]), int(arguments[2])
    # Processes that the engine starts must not hold the pipe open after this one has died.
    os.set_inheritable(int(arguments[0]), False)
    threading.Thread(target=_watch_parent, args=(parent, folder), daemon=True).start()
    try:
        serve(pipe, folder, make_host)
    except (EOFError, ConnectionError):  # the parent is gone
        shutil.rmtree(folder, ignore_errors=True)


def serve(pipe: Connection, folder: Path, make_host: Callable[[dict[str, Any]], Host]) -> None:
    """Answer requests until one says `close`; an engine that failed ends the process."""
    host: Host | None = None
    while (message := receive(pipe))["do"] != "close":
        answer: dict[str, Any] = {"done": message["do"]}
        try:
            if host is None:
                host = make_host(json.loads((folder / REQUEST).read_text()))
                answer["refused_adapters"] = getattr(host, "refused_adapters", None)
            else:
                answer |= _do(host, message, folder, pipe)
        except UserError as error:
            kind = "died" if isinstance(error, EngineDied) else type(error).__name__
            answer = {"error": str(error)[:2000], "kind": kind}
        send(pipe, answer)
        if answer.get("kind") == "died":
            return


def _do(host: Host, message: dict[str, Any], folder: Path, pipe: Connection) -> dict[str, Any]:
    progress = _signs_of_life(pipe)
    if message["do"] == "open":
        return {"refusal": host.refusal(message["buckets"])}
    if message["do"] == "sample":
        request = json.loads((folder / REQUEST).read_text())
        request["sampling"] = Sampling(**request["sampling"])
        rollouts = host.sample(**request, progress=progress)
        write_rollouts(folder / ROLLOUTS, rollouts)
        return {"version": rollouts.version}
    if message["do"] == "load":
        host.load(Delivery(_parts(pipe, folder, message), progress), message["version"])
    elif message["do"] == "adapt":
        adapting: Any = host  # only vLLM is asked to
        adapting.adapt(folder / ADAPTERS, message["version"])
    else:
        host.release()
    return {}


def _signs_of_life(pipe: Connection) -> Callable[[], None]:
    last = time.monotonic()

    def progress() -> None:
        nonlocal last
        if time.monotonic() - last > _ALIVE_SECONDS:
            last = time.monotonic()
            send(pipe, {"alive": True})

    return progress


def _watch_parent(parent: int, folder: Path) -> None:
    """End this process with its parent: an engine must not keep the GPU's memory alone."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


class TransformersHost:
    """A Hugging Face model within its process."""

    def __init__(
        self, *, max_rows: int, threads: int | None, pad_token_id: int, **model: Any
    ) -> None:
        """Load the model.

        Args:
            max_rows: see `TransformersEngine`.
            threads: of torch; unchanged if None.
            model: arguments of `load_policy`, which raises its errors.
        """
        from real.engines.transformers_engine import TransformersEngine
        from real.model.policy import load_policy

        if threads is not None:
            torch.set_num_threads(threads)
        policy = load_policy(**model)
        self._device = policy.device
        self._engine = TransformersEngine(
            policy.model, policy.eos_token_ids, pad_token_id, max_rows, tokenizer=policy.tokenizer
        )
        self._loaded = False

    def sample(
        self,
        prompts: Prompts,
        n: int,
        state: str,
        share: tuple[int, int],
        sampling: Sampling,
        progress: Callable[[], None],
    ) -> Rollouts:
        """Sample what `stated_request` asks for.

        Raises an EngineError where there are no weights of the trainer's.
        """
        if not self._loaded:
            raise EngineError("engine: has no weights of the trainer's, call update_weights first")
        generator = torch.Generator(self._device)
        generator.set_state(torch.tensor([*bytes.fromhex(state)], dtype=torch.uint8))
        self._engine.progress = progress
        rank, world = share
        return self._engine.sample(prompts, n, sampling, generator, (rank, world)).to("cpu")

    @torch.no_grad()
    def load(self, weights: Delivery, version: int) -> None:
        """Replace all weights; raises an EngineError for those of another model."""
        self._loaded = False
        own = dict(self._engine.model.named_parameters())
        for name, weight in weights:
            if name not in own:
                raise EngineError(f"engine: its model has no weight {name}")
            own.pop(name).copy_(weight)
        if own:
            raise EngineError(f"engine: it was not given {', '.join(own)}")
        self._engine.version = version
        self._loaded = True

    def refusal(self, buckets: list[Handle]) -> str | None:
        """Return why a bucket of the trainer cannot be opened; None if it can."""
        try:
            opened(buckets[0])
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def release(self) -> None:
        """Keep the memory: the plan counts it in both phases."""


def _vllm_host(settings: dict[str, Any]) -> Host:
    from real.engines.vllm_host import VllmHost
    from real.engines.vllm_settings import VllmSettings

    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    ends = tuple(settings.pop("eos_token_ids"))
    return VllmHost(VllmSettings(**settings, eos_token_ids=ends))


if __name__ == "__main__":
    own = sys.argv[1] == "transformers"
    main((lambda values: TransformersHost(**values)) if own else _vllm_host, sys.argv[2:])
