"""vLLM in the trainer's process."""

from __future__ import annotations

from typing import Any

import torch

from lab.errors import UserError
from real.engines.requests import request_seeds
from real.engines.rollouts import EngineError, Prompts, Rollouts, Sampling, Stages
from real.engines.vllm_host import VllmHost, world_size
from real.engines.vllm_settings import VllmSettings
from real.engines.weights import named_weights


class VllmEngine:
    """vLLM in the trainer's process: the fastest transfer of weights.

    A GPU kernel that hangs also hangs the trainer; `real.engines.child_engine` can be killed.
    """

    queues = True

    def __init__(self, settings: VllmSettings) -> None:
        """Start it.

        Raises:
            UserError: vLLM is not installed, or this is one of several ranks.
            EngineDied: it cannot start.
        """
        if world_size() > 1:
            raise UserError(
                "engine = 'vllm_inprocess': cannot share a process with torch.distributed, "
                "use vllm, which has a process of its own on every rank"
            )
        self._host: VllmHost | None = VllmHost(settings)

    @property
    def host(self) -> VllmHost:
        """The engine, which must not be closed."""
        if self._host is None:
            raise EngineError("vLLM: the engine is closed")
        return self._host

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt; see `VllmHost.sample`."""
        seeds = request_seeds(generator, len(prompts), n)
        return self.host.sample(prompts, n, sampling, seeds)

    def release(self) -> None:
        """Free the GPU's memory."""
        self.host.release()

    def update_weights(self, model: Any, version: int) -> Stages:
        """Load the model's weights."""
        # Copies: vLLM may keep the tensors, and the optimizer writes in place.
        weights = ((name, weight.clone()) for name, weight in named_weights(model))
        self.host.load(weights, version)
        return {}

    def close(self) -> None:
        """Stop the engine."""
        if self._host is not None:
            self._host.close()
        self._host = None
