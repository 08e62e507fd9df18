r"""A vLLM server that was started separately: tokens in, tokens out, over HTTP.

Checked with `vllm serve` 0.32 on a CPU. The server is started with

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs \
        --weight-transfer-config '{"backend": "nccl"}'

In development mode the server answers every client: keep it on a private address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from lab.errors import UserError
from real.engines.requests import (
    Response,
    check_prompts,
    request_params,
    request_seeds,
    to_rollouts,
)
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling, Stages
from real.engines.vllm_http import FileTransfer, Http, NcclTransfer, Transfer
from real.engines.vllm_settings import check_version

_POLL_SECONDS = 0.5
_CONNECTIONS = 256
"""Requests that are open at once; each is one prompt with all its responses."""


class VllmServerEngine:
    """A client of `vllm serve`.

    It cannot return what `Sampling.stats` asks for: the server's answers hold the log-probs of
    sampled tokens only. Rules that need entropies cost a forward pass of the trainer.
    """

    queues = True

    def __init__(
        self,
        url: str,
        timeout: float,
        eos_token_ids: Sequence[int],
        pad_token_id: int = 0,
        device: torch.device | str = "cpu",
        transfer: Callable[[Http], Transfer] | None = None,
    ) -> None:
        """Wait until the server is ready and check how it was started.

        Args:
            url: of the server.
            timeout: most seconds until it is ready, and for each answer. A request draws all
                responses to one prompt.
            eos_token_ids: tokens that end a response; no others do.
            pad_token_id: fills the positions after a response's end.
            device: of the trainer; weights go over NCCL from a GPU, else through a file.
            transfer: makes another way to send weights.

        Raises:
            UserError: the server lacks something that training needs.
            EngineDied: the server cannot be reached.
        """
        self.http = Http(url, timeout)
        self.device = torch.device(device)
        self.eos_token_ids = [*eos_token_ids]
        self.pad_token_id = pad_token_id
        self.version: int | None = None
        self._wait_until_ready()
        self.max_model_len = self._check_server()
        make = transfer or (NcclTransfer if self.device.type == "cuda" else FileTransfer)
        self._transfer: Transfer | None = None
        self._make_transfer = make

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt.

        Raises:
            UserError: a prompt is empty or too long.
            EngineError: the server refuses, or its weights are not the trainer's.
            EngineDied: the server is gone, or took too long.
        """
        check_prompts(prompts, n, sampling.max_tokens, self.max_model_len)
        if self.version is None:
            raise EngineError("vLLM server: call update_weights before the first sample")
        seeds = request_seeds(generator, len(prompts), n)
        bodies = [
            {
                "token_ids": [*prompt],
                "sampling_params": request_params(n, sampling, seed, self.eos_token_ids),
            }
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        with ThreadPoolExecutor(min(len(bodies), _CONNECTIONS)) as pool:
            answers = list(pool.map(lambda b: self.http.post("/inference/v1/generate", b), bodies))
        responses = [
            [self._response(choice, sampling.logprobs) for choice in _choices(answer)]
            for answer in answers
        ]
        return to_rollouts(responses, n, self.pad_token_id, self.version)

    def release(self) -> None:
        """Do nothing: the server has its own GPUs."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send all weights, empty the prefix cache of the old ones, and name the new ones.

        Raises:
            EngineError: the server does not take them.
            EngineDied: the server is gone.
        """
        self.version = None
        if self._transfer is None:
            self._transfer = self._make_transfer(self.http)
        self._transfer.send(model)
        if self.http.post("/reset_prefix_cache").get("success") is not True:
            raise EngineDied("vLLM server: the prefix cache was not emptied, requests are running")
        self.http.post("/update_weight_version", {"new_version": str(version)})
        self.version = version
        return {}

    def close(self) -> None:
        """Disconnect from the server, which keeps running."""
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None

    def _response(self, choice: Any, with_logprobs: bool) -> Response:
        try:
            versions = {span["version"] for span in choice["weight_versions"] or ()}
            tokens = choice["token_ids"]
            content = choice["logprobs"]["content"] if with_logprobs else []
            logprobs = [token["logprob"] for token in content] if with_logprobs else None
            reason = choice["finish_reason"]
        except (KeyError, TypeError) as error:
            raise EngineError(
                f"vLLM server: an answer lacks {error}; version 0.32 or newer is needed"
            ) from error
        if versions != {str(self.version)}:
            raise EngineError(
                f"vLLM server: a response was drawn by version {', '.join(sorted(versions))} of "
                f"the weights instead of {self.version}; a server can serve one run alone"
            )
        if reason not in ("stop", "length"):
            raise EngineDied(f"vLLM server: a response ended by {reason!r}")
        return Response(tokens, logprobs, reason == "stop")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.http.timeout
        while True:
            try:
                self.http.get("/health")
                return
            except EngineDied:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _check_server(self) -> int:
        """Check the server's release and settings; return the longest sequence that it takes."""
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
        return int(models[0].get("max_model_len") or info["max_model_len"])


def _choices(answer: dict[str, Any]) -> list[Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise EngineError("vLLM server: an answer holds no choices")
    return sorted(choices, key=lambda choice: choice["index"])
