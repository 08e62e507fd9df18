"""Engines in this process with weights of their own, for runs that sample beside the update."""

from __future__ import annotations

import copy
from typing import Any

import torch

from real.engines.ranked import RankedEngine
from real.engines.rollouts import (
    EngineDied,
    Prompts,
    Rollouts,
    Sampling,
    Stages,
)
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy
from real.ranks.distributed import whole_tensor
from real.settings.config import TrainConfig


class CopiedEngine(TransformersEngine):
    """Samples with a copy of the model, which stands for an engine in a process of its own."""

    fails_at: int | None = None
    """Draw of votes that fails, counted from 0, the votes before training."""

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        # With gradients as the trainer's: torch folds products of frozen weights in another order.
        own = copy.deepcopy(policy.model)
        super().__init__(own, policy.eos_token_ids, policy.pad_token_id, config.max_rows)
        self.n_drawn = 0

    def sample(self, prompts: Prompts, n: int, sampling: Sampling, *others: Any) -> Rollouts:
        if sampling.logprobs:  # else an evaluation
            if self.n_drawn == self.fails_at:
                raise EngineDied("engine: died as the test wants it")
            self.n_drawn += 1
        return super().sample(prompts, n, sampling, *others)

    def release(self) -> None:
        raise AssertionError("the engine must stay awake")

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> Stages:
        for own, trained in zip(self.model.parameters(), model.parameters(), strict=True):
            own.copy_(whole_tensor(trained))
        return super().update_weights(self.model, version)


class LaggingEngine(CopiedEngine):
    """Samples votes, in turn with the update, by the weights of the version before the last."""

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        super().__init__(policy, config)
        self.versions: list[dict[str, torch.Tensor]] = []

    def sample(self, prompts: Prompts, n: int, sampling: Sampling, *others: Any) -> Rollouts:
        latest = len(self.versions) - 1
        self.model.load_state_dict(self.versions[max(0, latest - bool(sampling.logprobs))])
        return super().sample(prompts, n, sampling, *others)

    def release(self) -> None:
        pass

    def update_weights(self, model: Any, version: int) -> Stages:
        stages = super().update_weights(model, version)
        self.versions.append(copy.deepcopy(self.model.state_dict()))
        return stages


def copied(config: TrainConfig, policy: Policy, *_: Any) -> CopiedEngine:
    """Stand in for `real.engines.make.make_engine`."""
    return CopiedEngine(policy, config)


def lagging(config: TrainConfig, policy: Policy, *_: Any) -> LaggingEngine:
    """Stand in for it as well."""
    return LaggingEngine(policy, config)


def copied_on_ranks(
    config: TrainConfig, policy: Policy, _: Any, ranks: Any, *__: Any
) -> RankedEngine:
    """Stand in for it with several ranks."""
    return RankedEngine(CopiedEngine(policy, config), ranks, policy.pad_token_id)
