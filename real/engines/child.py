"""The process of an engine, and the exchange with its parent.

Parent and child exchange short JSON messages over a pipe. They always fit into its buffer, so that
writing one cannot block, even if the other side has stopped reading. Requests, rollouts and
weights are files in a folder, in memory (`/dev/shm`) where there is room. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lab.errors import UserError
from real.engines.rollouts import EngineDied, Prompts, Rollouts, Sampling

REQUEST = "request.json"
ROLLOUTS = "rollouts.safetensors"
WEIGHTS = "weights.safetensors"
_MEMORY = Path("/dev/shm")
_ALIVE_SECONDS = 1.0
"""Least time between two signs of life."""
_PARENT_SECONDS = 1.0
"""Time between two checks that the parent lives."""


class Host(Protocol):
    """An engine within its process, such as `real.engines.vllm_host.VllmHost`."""

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        seeds: Sequence[int],
        progress: Callable[[], None],
    ) -> Rollouts:
        """Sample, and call `progress` now and then."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights."""
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


def exchange_folder(n_bytes: int) -> Path:
    """Make a folder with room for weights of `n_bytes`, in memory if possible."""
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 1.2 * n_bytes + 2**26
    return Path(tempfile.mkdtemp(prefix="guard-engine-", dir=_MEMORY if in_memory else None))


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """Write rollouts to a file, without their version, which the message holds."""
    fields = {
        "tokens": rollouts.tokens_PNT,
        "logprobs": rollouts.logprobs_PNT,
        "lengths": rollouts.lengths_PN,
        "finished": rollouts.finished_PN,
        "entropy": rollouts.entropy_PV,
        "certainty": rollouts.certainty_PV,
    }
    save_file(
        {name: field.contiguous() for name, field in fields.items() if field is not None}, path
    )


def read_rollouts(path: Path, version: int) -> Rollouts:
    """Read rollouts and delete the file."""
    fields = load_file(path)
    path.unlink()
    return Rollouts(
        fields["tokens"],
        fields["logprobs"],
        fields["lengths"],
        fields["finished"],
        version,
        fields.get("entropy"),
        fields.get("certainty"),
    )


def read_weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and value of every weight, one at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118, it is no dict
            yield name, file.get_tensor(name)


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
            else:
                answer |= _do(host, message, folder, _signs_of_life(pipe))
        except UserError as error:
            kind = "died" if isinstance(error, EngineDied) else type(error).__name__
            answer = {"error": str(error)[:2000], "kind": kind}
        send(pipe, answer)
        if answer.get("kind") == "died":
            return


def _do(
    host: Host, message: dict[str, Any], folder: Path, progress: Callable[[], None]
) -> dict[str, Any]:
    if message["do"] == "sample":
        request = json.loads((folder / REQUEST).read_text())
        sampling = Sampling(**request["sampling"])
        rollouts = host.sample(
            request["prompts"], request["n"], sampling, request["seeds"], progress
        )
        write_rollouts(folder / ROLLOUTS, rollouts)
        return {"version": rollouts.version}
    if message["do"] == "load":
        host.load(_with_signs(read_weights(folder / WEIGHTS), progress), message["version"])
    else:
        host.release()
    return {}


def _with_signs(
    weights: Iterable[tuple[str, torch.Tensor]], progress: Callable[[], None]
) -> Iterable[tuple[str, torch.Tensor]]:
    for named_weight in weights:
        progress()
        yield named_weight


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


def _vllm_host(settings: dict[str, Any]) -> Host:
    from real.engines.vllm_host import VllmHost, VllmSettings

    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    ends = tuple(settings.pop("eos_token_ids"))
    return VllmHost(VllmSettings(**settings, eos_token_ids=ends))


if __name__ == "__main__":
    main(_vllm_host, sys.argv[1:])
