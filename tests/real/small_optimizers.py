"""An optimizer of a small model, and groups for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import Qwen2ForCausalLM

from real.tiny.pretrain import Recipe, initial_model
from real.update.group import Group
from real.update.grpo import LossConfig
from real.update.optimizer import OptimizerConfig, PolicyOptimizer

SMALL = Recipe(width=16, layers=1, mlp_width=24)


def weights(model: Qwen2ForCausalLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def make_group(seed: int, silent: bool = False, **changes: object) -> Group:
    g = torch.Generator().manual_seed(seed)
    majority = torch.zeros(6) if silent else torch.randn(6, generator=g)
    group = Group(
        prompt_L=torch.randint(3, 20, (5,), generator=g),
        tokens_KT=torch.randint(3, 20, (6, 4), generator=g),
        old_KT=torch.full((6, 4), -3.0),
        lengths_K=torch.tensor([4, 3, 4, 1, 2, 4]),
        majority_K=majority,
        minority_K=torch.zeros(6),
    )
    return replace(group, **changes)


def make_optimizer(
    drop_uniform: bool = False,
    dtype: torch.dtype = torch.float32,
    kl_coef: float = 0.0,
    micro_tokens: int = 16384,
    **changes: object,
) -> PolicyOptimizer:
    model = initial_model(SMALL, 0).eval().to(dtype)
    loss = LossConfig(drop_uniform=drop_uniform, kl_coef=kl_coef, micro_tokens=micro_tokens)
    config = replace(OptimizerConfig(lr=1e-2, warmup_ratio=0.0), **changes)
    return PolicyOptimizer(model, loss, config, n_scheduled=10)
