r"""A vLLM server that was started separately: tokens in, tokens out, over HTTP.

Checked with `vllm serve` 0.32 on a CPU. The server is started with

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs \
        --hf-overrides '{"head_dtype": "float32"}' --weight-transfer-config '{"backend": "nccl"}'

In development mode the server answers every client: keep it on a private address.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from lab.base.errors import UserError, install
from real.engines.rollouts import (
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    SampledResponse,
    Sampling,
    Stages,
    check_prompts,
    request_params,
    seeded_request,
    to_rollouts,
)
from real.engines.vllm_engine import check_version
from real.engines.weights import LOCAL, Route, in_checkpoint, named_weights, stored_weights
from real.ranks.distributed import ALONE, write_tensors

_SHORT_SECONDS = 30.0


class Http:
    """A server that takes and returns JSON."""

    def __init__(self, url: str, timeout: float) -> None:
        """Set up without contact to the server; `timeout` is the most seconds of an answer."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UserError(f"engine_url = {url!r}: must look like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.timeout = timeout
        # A proxy from the environment is for the internet, not for an engine on this network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> dict[str, Any]:
        """Request a path, with the errors of `post`."""
        return self._ask(path, None, min(_SHORT_SECONDS, self.timeout))

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """Send JSON and return the answer; an EngineError if refused, EngineDied without any."""
        return self._ask(path, b"" if body is None else json.dumps(body).encode(), self.timeout)

    def _ask(self, path: str, data: bytes | None, timeout: float) -> dict[str, Any]:
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        where = f"vLLM server {request.full_url}"
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                reason = json.loads(reason)["error"]["message"]
            reason = " ".join(str(reason).split())[:300] or str(error.reason)
            kind = EngineDied if error.code >= 500 else EngineError
            raise kind(f"{where}: answered {error.code} ({reason})") from error
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


class FileTransfer:
    """Sends weights through a file, to a server on this machine without GPUs."""

    def __init__(self, http: Http, dtype: torch.dtype | None = None) -> None:
        self._http, self._dtype = http, dtype

    def send(self, model: Any) -> None:
        config = model.config.get_text_config()
        if getattr(config, "tie_word_embeddings", False):
            raise UserError(
                "engine = 'vllm_server': a server without a GPU keeps the old output head of a "
                "model with tied embeddings; use vllm"
            )
        with tempfile.TemporaryDirectory(prefix="guard-weights-") as folder:
            weights = dict(named_weights(model, self._dtype))
            write_tensors(Path(folder, "model.safetensors"), weights)
            kwargs = {"weights_path": folder}
            self._http.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})

    def close(self) -> None:
        """Do nothing."""


class NcclTransfer:
    """Sends weights from GPU to GPU, by vLLM 0.32 or 0.33. Never run: needs two GPUs."""

    def __init__(self, http: Http, dtype: torch.dtype | None = None) -> None:
        self._http, self._dtype = http, dtype
        self._engine: Any = None
        self._model: Any = None

    def send(self, model: Any) -> None:
        try:
            if self._model is not model:
                self.close()
                self._engine, self._model = self._connect(model), model
            self._engine.send_weights()
        except (RuntimeError, OSError, ValueError) as error:
            raise EngineDied(f"vLLM server: sending weights failed ({error})") from error

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = self._model = None

    def _connect(self, model: Any) -> Any:
        try:
            from vllm.distributed.weight_transfer import base, clients, factory, nccl_engine
        except ImportError as error:
            raise UserError(
                "engine = 'vllm_server': sending weights over NCCL needs vLLM on this side too "
                f"({error}); {install('vllm')}"
            ) from error
        source = weight_source(base, model, self._dtype)
        workers = int(self._http.get("/get_world_size")["world_size"])
        url = urlsplit(self._http.url)
        # This machine as the server sees it, and a free port.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((url.hostname or "127.0.0.1", url.port or 80))
            address = probe.getsockname()[0]
        with socket.socket() as listening:
            listening.bind((address, 0))
            port = listening.getsockname()[1]
        info = nccl_engine.NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=workers + 1, rank=0
        )
        client = clients.HTTPVLLMWeightSyncClient(self._http.url, timeout=self._http.timeout)
        return factory.WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def weight_source(base: Any, model: Any, dtype: torch.dtype | None) -> Any:
    """Return a model's weights as vLLM's module `distributed.weight_transfer.base` reads them."""

    def described(_: Any) -> list[Any]:
        # Neither gathered nor merged with adapters: other ranks do not take part.
        weights = stored_weights(model, dtype, merge=False, in_model=True)
        shapes = ((n, torch.empty(w.shape, dtype=w.dtype, device="meta")) for n, w in weights)
        parts = chain.from_iterable(in_checkpoint(model, *shape) for shape in shapes)
        return [base.ParamMeta(name, part.dtype, tuple(part.shape)) for name, part in parts]

    def weights(_: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return named_weights(model, dtype)

    # 0.32 calls `metadata` and iterates; 0.33 wants a cached property and reads `iter_full`.
    cached = hasattr(base.WeightSource, "iter_full")
    metadata: Any = cached_property(described) if cached else described
    content = {"metadata": metadata, "__iter__": weights, "iter_full": weights}
    return type("Source", (base.WeightSource,), content)()


_POLL_SECONDS = 0.5
_CONNECTIONS = 256
"""Requests that are open at once; each is one prompt with all its responses."""


class VllmServerEngine:
    """A client of `vllm serve`, or of one of several servers that the ranks of a run share."""

    share = ALONE.share

    def __init__(
        self,
        url: str,
        timeout: float,
        eos_token_ids: Sequence[int],
        pad_token_id: int = 0,
        route: Route = LOCAL,
        head_dtype: str = "model",
        sends: bool = True,
    ) -> None:
        """Wait until the server is ready and check how it was started.

        Each answer, with all responses to one prompt, may take `timeout` seconds. Of the ranks of a
        server one `sends` it the weights, by NCCL from a GPU, else through a file.
        """
        self._route = route
        self.http = Http(url, timeout)
        self.eos_token_ids = [*eos_token_ids]
        self.pad_token_id = pad_token_id
        self.version: int | None = None
        self.max_model_len = self._check_server(head_dtype)
        kind = NcclTransfer if route.device.type == "cuda" else FileTransfer
        self.transfer = kind(self.http, route.dtype) if sends else None

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with `Http.post`'s errors."""
        check_prompts(prompts, n, sampling.max_tokens, self.max_model_len)
        if self.version is None:
            raise EngineError("vLLM server: call update_weights before the first sample")
        request = seeded_request(prompts, n, sampling, generator, self.share)
        n, rows = request["n"], request["prompts"]

        def ask(prompt: Sequence[int], seed: int) -> list[SampledResponse]:
            params = request_params(n, sampling, seed, self.eos_token_ids)
            body = {"token_ids": [*prompt], "sampling_params": params}
            choices = self.http.post("/inference/v1/generate", body).get("choices")
            if not isinstance(choices, list):
                raise EngineError("vLLM server: an answer holds no choices")
            choices.sort(key=lambda choice: choice["index"])
            return [_response(choice, sampling.logprobs) for choice in choices]

        with ThreadPoolExecutor(min(len(rows), _CONNECTIONS)) as pool:
            responses = list(pool.map(ask, rows, request["seeds"]))
        hint = "; a server can serve one run alone"
        return to_rollouts(responses, n, self.pad_token_id, self.version, "vLLM server", hint)

    def release(self) -> None:
        """Do nothing: the server has its own GPUs."""

    def update_weights(self, model: Any, version: int) -> Stages:
        self.version = None
        if self.transfer is None:
            for _ in named_weights(model, self._route.dtype):
                pass  # sharded weights are gathered by all ranks
        else:
            self.transfer.send(model)
            if self.http.post("/reset_prefix_cache").get("success") is not True:
                raise EngineDied(
                    "vLLM server: the prefix cache was not emptied, requests are running"
                )
            self.http.post("/update_weight_version", {"new_version": str(version)})
        self._route.ranks.wait()  # until all servers have the weights
        self.version = version
        return {}

    def close(self) -> None:
        """Disconnect from the server, which keeps running."""
        if self.transfer is not None:
            self.transfer.close()

    def _check_server(self, head_dtype: str) -> int:
        """Wait for the server, check it, and return the longest sequence that it takes."""
        deadline, ready = time.monotonic() + self.http.timeout, False
        while not ready:
            try:
                self.http.get("/health")
                ready = True
            except EngineDied:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
        version = str(self.http.get("/version").get("version"))
        check_version(version, f"engine_url = {self.http.url}")
        models = self.http.get("/v1/models").get("data") or [{}]
        try:
            info = self.http.get("/server_info?config_format=json")["vllm_config"]["model_config"]
            mode = info["logprobs_mode"]
        except (EngineError, KeyError, TypeError) as error:
            raise UserError(
                f"engine_url = {self.http.url}: the server takes no weights; start it with "
                "VLLM_SERVER_DEV_MODE=1"
            ) from error
        if mode != "processed_logprobs":
            raise UserError(
                f"engine_url = {self.http.url}: the server gives {mode}, which are not those at "
                "the sampling temperature; start it with --logprobs-mode processed_logprobs"
            )
        dtype = (info.get("hf_overrides") or {}).get("head_dtype", info.get("dtype", "unknown"))
        if head_dtype == "float32" and not str(dtype).endswith("float32"):
            raise UserError(
                f"engine_url = {self.http.url}: the server's logits are {dtype}, the trainer's "
                """float32; start it with --hf-overrides '{"head_dtype": "float32"}', or train """
                "with --head-dtype model"
            )
        return int(models[0].get("max_model_len") or info["max_model_len"])


def _response(choice: Any, with_logprobs: bool) -> SampledResponse:
    try:
        versions = {span["version"] for span in choice["weight_versions"] or ()}
        content = choice["logprobs"]["content"] if with_logprobs else []
        logprobs = [token["logprob"] for token in content] if with_logprobs else None
        return SampledResponse(choice["token_ids"], logprobs, choice["finish_reason"], versions)
    except (KeyError, TypeError) as error:
        raise EngineError(
            f"vLLM server: an answer lacks {error}; version 0.32 or newer is needed"
        ) from error
