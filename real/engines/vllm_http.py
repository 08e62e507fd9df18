"""The connection to a vLLM server: JSON over HTTP, and the transfer of weights.

Weights are sent over NCCL between GPUs, or through a file. Every failure is one line.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch

from lab.errors import UserError
from real.engines.rollouts import EngineDied, EngineError
from real.engines.weights import named_weights
from real.ranks.tensor_files import write_tensors

_SHORT_SECONDS = 30.0
"""Timeout of requests that a server answers at once."""


class Http:
    """A server that takes and returns JSON."""

    def __init__(self, url: str, timeout: float) -> None:
        """Set up without contact to the server.

        Args:
            url: of the server, without a path.
            timeout: most seconds that an answer may take.

        Raises:
            UserError: it is no URL of a server.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UserError(f"engine_url = {url!r}: must look like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.timeout = timeout
        # A proxy from the environment is for the internet, not for an engine on this network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> dict[str, Any]:
        """Request a path, with the errors of `post`."""
        return self._ask(urllib.request.Request(self.url + path), min(_SHORT_SECONDS, self.timeout))

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """Send JSON and return the answer.

        Raises:
            EngineError: the server refuses.
            EngineDied: the server cannot be reached, failed, or did not answer in time.
        """
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, data, headers), self.timeout)

    def _ask(self, request: urllib.request.Request, timeout: float) -> dict[str, Any]:
        where = f"vLLM server {request.full_url}"
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            kind = EngineDied if error.code >= 500 else EngineError
            raise kind(f"{where}: answered {error.code} ({_reason(error)})") from error
        except TimeoutError as error:
            raise EngineDied(
                f"{where}: no answer within {timeout:g} s; raise engine_timeout if it only needs "
                "more time"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            raise EngineDied(f"{where}: cannot be reached ({cause}); is it running?") from error
        try:
            return json.loads(text) if text else {}
        except ValueError as error:
            raise EngineError(f"{where}: answered something that is no JSON") from error


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:300] or str(error.reason)


class Transfer(Protocol):
    """A way to send weights to the server."""

    def send(self, model: Any) -> None:
        """Replace all weights of the server."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class FileTransfer:
    """Sends weights through a file, to a server on this machine without GPUs."""

    def __init__(self, http: Http) -> None:
        """Make a folder for the file."""
        self._http = http
        self._folder = Path(tempfile.mkdtemp(prefix="guard-weights-"))

    def send(self, model: Any) -> None:
        """Write all weights and let the server read them."""
        config = model.config.get_text_config()
        if getattr(config, "tie_word_embeddings", False):
            raise UserError(
                "engine = 'vllm_server': a server without a GPU keeps the old output head of a "
                "model with tied embeddings; use vllm"
            )
        write_tensors(self._folder / "model.safetensors", dict(named_weights(model)))
        kwargs = {"weights_path": str(self._folder)}
        self._http.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class NcclTransfer:
    """Sends weights from GPU to GPU, by vLLM 0.32 or 0.33. Never run: needs two GPUs."""

    def __init__(self, http: Http, dtype: torch.dtype | None = None) -> None:
        """Set up; the connection is made with the first model."""
        self._http = http
        self._dtype = dtype
        self._engine: Any = None
        self._model: Any = None

    def send(self, model: Any) -> None:
        """Broadcast all weights to the server's workers."""
        if self._model is not model:
            self.close()
            self._engine, self._model = self._connect(model), model
        try:
            self._engine.send_weights()
        except (RuntimeError, OSError, ValueError) as error:
            raise EngineDied(f"vLLM server: sending weights failed ({error})") from error

    def close(self) -> None:
        """Leave the group."""
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = self._model = None

    def _connect(self, model: Any) -> Any:
        try:
            from vllm.distributed.weight_transfer import (  # pyright: ignore[reportMissingImports]
                base,
                clients,
                factory,
                nccl_engine,
            )
        except ImportError as error:
            raise UserError(
                "engine = 'vllm_server': sending weights over NCCL needs vLLM on this side too "
                f"({error}); pip install 'ttrl-guard-lab[vllm]'"
            ) from error
        source = weight_source(base, model, self._dtype)
        workers = int(self._http.get("/get_world_size")["world_size"])
        address, port = _own_address(self._http.url)
        info = nccl_engine.NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=workers + 1, rank=0
        )
        client = clients.HTTPVLLMWeightSyncClient(self._http.url, timeout=self._http.timeout)
        make = factory.WeightTransferTrainerFactory.trainer_init
        return make(info, client=client, source=source)


def weight_source(base: Any, model: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a model's weights as vLLM's transfer reads them.

    Args:
        base: vLLM's module `vllm.distributed.weight_transfer.base`.
        model: whose weights are described and yielded, in the same order.
        dtype: of the floating-point weights; unchanged if None.
    """

    def described(_: Any) -> list[Any]:
        weights = named_weights(model, dtype)
        return [base.ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in weights]

    def weights(_: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return named_weights(model, dtype)

    # 0.32 calls `metadata` and iterates; 0.33 wants a cached property and reads `iter_full`.
    cached = hasattr(base.WeightSource, "iter_full")
    metadata: Any = cached_property(described) if cached else described
    content = {"metadata": metadata, "__iter__": weights, "iter_full": weights}
    return type("Source", (base.WeightSource,), content)()


def _own_address(url: str) -> tuple[str, int]:
    """Return the address of this machine as the server sees it, and a free port."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        address = probe.getsockname()[0]
    with socket.socket() as listening:
        listening.bind((address, 0))
        return address, listening.getsockname()[1]
