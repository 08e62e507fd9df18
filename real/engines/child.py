"""The process of an engine, which serves the requests of its parent as `exchange` has them."""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lab.base.errors import UserError
from real.engines import exchange
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling

_SECONDS = 1.0
"""Least time between two signs of life, and between two checks that the parent lives."""


def main(make_host: Callable[[dict[str, Any]], Any], arguments: Sequence[str]) -> None:
    """Serve an engine until its parent is gone, given pipe, exchange folder and parent's id."""
    pipe, folder, parent = Connection(int(arguments[0])), Path(arguments[1]), int(arguments[2])
    # Processes that the engine starts must not hold the pipe open after this one has died.
    os.set_inheritable(int(arguments[0]), False)
    threading.Thread(target=_watch_parent, args=(parent, folder), daemon=True).start()
    try:
        _serve(pipe, folder, make_host)
    except (EOFError, ConnectionError):  # the parent is gone
        shutil.rmtree(folder, ignore_errors=True)
    if not multiprocessing.active_children():  # else vLLM ends its own processes
        sys.stdout.flush()
        os._exit(0)  # the end of an interpreter with vLLM's modules takes seconds


def _serve(pipe: Connection, folder: Path, make_host: Callable[[dict[str, Any]], Any]) -> None:
    """Answer requests until one says `close`; an engine that failed ends the process."""
    host: Any = None
    while (message := exchange.receive(pipe))["do"] != "close":
        try:
            if host is None:
                settings = json.loads((folder / exchange.REQUEST).read_text())
                if (n_threads := settings.pop("threads", None)) is not None:
                    torch.set_num_threads(n_threads)
                host = make_host(settings)
                answer = {"refused_adapters": getattr(host, "refused_adapters", None)}
            else:
                answer = _do(host, message, folder, pipe)
        except UserError as error:
            kind = "died" if isinstance(error, EngineDied) else type(error).__name__
            answer = {"error": str(error)[:2000], "kind": kind}
        exchange.send(pipe, answer)
        if answer.get("kind") == "died":
            return


def _do(host: Any, message: dict[str, Any], folder: Path, pipe: Connection) -> dict[str, Any]:
    version, host.progress = message.get("version"), _signs_of_life(pipe)
    match message["do"]:
        case "open":
            return {"refusal": host.refusal(message["buckets"])}
        case "sample":
            request = json.loads((folder / exchange.REQUEST).read_text())
            request["sampling"] = Sampling(**request["sampling"])
            rollouts = host.sample(**request)
            with exchange.writing(folder / exchange.ROLLOUTS):
                save_file(rollouts.packed(), folder / exchange.ROLLOUTS)
            return {"version": rollouts.version}
        case "load":
            host.load(exchange.Delivery(_parts(pipe, folder, message), host.progress), version)
        case "adapt":  # only vLLM is asked to
            host.adapt(folder / exchange.ADAPTERS, version)
        case _:
            host.release()
    return {}


def _parts(pipe: Connection, folder: Path, message: Mapping[str, Any]) -> Iterator[exchange.Sent]:
    """Yield what is in the buckets, listed in place of a request, and wait for the next."""
    while True:
        listed = json.loads((folder / exchange.REQUEST).read_text())
        entries = [exchange.Entry(*values) for values in listed]
        yield exchange.Sent(message["buckets"], entries, message["last"])
        if message["last"]:
            return
        exchange.send(pipe, {"taken": len(entries)})
        message = exchange.receive(pipe)


def _signs_of_life(pipe: Connection) -> Callable[[], None]:
    last = time.monotonic()

    def progress() -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS:
            last = time.monotonic()
            exchange.send(pipe, {"alive": True})

    return progress


def _watch_parent(parent: int, folder: Path) -> None:
    """End this process with its parent: an engine must not keep the GPU's memory alone."""
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


class TransformersHost:
    """A Hugging Face model within its process."""

    progress: Callable[[], None]
    """To be called as often as possible, as a sign of life."""

    def __init__(self, *, max_rows: int, pad_token_id: int, **model: Any) -> None:
        from real.engines.transformers_engine import TransformersEngine
        from real.model.policy import load_policy

        policy = load_policy(**model)
        self._engine = TransformersEngine(
            policy.model, policy.eos_token_ids, pad_token_id, max_rows, tokenizer=policy.tokenizer
        )
        self._loaded = False

    def sample(
        self, prompts: Prompts, n: int, state: str, share: tuple[int, int], sampling: Sampling
    ) -> Rollouts:
        """Sample what `stated_request` asks for."""
        if not self._loaded:
            raise EngineError("engine: has no weights of the trainer's, call update_weights first")
        generator = torch.Generator(self._engine.model.device)
        generator.set_state(torch.tensor([*bytes.fromhex(state)], dtype=torch.uint8))
        self._engine.progress, self._engine.share = self.progress, share
        return self._engine.sample(prompts, n, sampling, generator).to("cpu")

    @torch.no_grad()
    def load(self, weights: exchange.Delivery, version: int) -> None:
        self._loaded = False
        parameters = dict(self._engine.model.named_parameters())
        for name, weight in weights:
            if name not in parameters:
                raise EngineError(f"engine: its model has no weight {name}")
            parameters.pop(name).copy_(weight)
        if parameters:
            raise EngineError(f"engine: it was not given {', '.join(parameters)}")
        self._engine.version = version
        self._loaded = True

    def refusal(self, buckets: list[exchange.Handle]) -> str | None:
        return exchange.refused(buckets[0])

    def release(self) -> None:
        """Keep the memory: the plan counts it in both phases."""


if __name__ == "__main__":
    main(lambda settings: pkgutil.resolve_name(sys.argv[1])(**settings), sys.argv[2:])
