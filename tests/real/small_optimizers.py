"""An optimizer of a small model, and groups for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

from real.settings.config import TrainConfig
from real.tiny.pretrain import Recipe, initial_model
from real.update.optimizer import PolicyOptimizer
from real.update.packing import Group

SMALL = Recipe(width=16, layers=1, mlp_width=24)


def weights(model: Qwen2ForCausalLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def make_group(seed: int, silent: bool = False, **changes: object) -> Group:
    g = torch.Generator().manual_seed(seed)
    majority_K = torch.zeros(6) if silent else torch.randn(6, generator=g)
    prompt_L, tokens_KT = (torch.randint(3, 20, size, generator=g) for size in ((5,), (6, 4)))
    lengths_K, old_KT = torch.tensor([4, 3, 4, 1, 2, 4]), torch.full((6, 4), -3.0)
    group = Group(prompt_L, tokens_KT, old_KT, lengths_K, majority_K, torch.zeros(6))
    return replace(group, **changes)


def taken(*seeds: int, **settings: Any) -> PolicyOptimizer:
    """An optimizer after one step for each seed."""
    made = make_optimizer(**settings)
    for seed in seeds:
        made.step([make_group(seed)])
    return made


def make_optimizer(dtype: torch.dtype = torch.float32, **changes: Any) -> PolicyOptimizer:
    model = initial_model(SMALL, 0).eval().to(dtype)
    config = replace(TrainConfig(temperature=1.0, lr=1e-2, warmup_ratio=0.0), **changes)
    return PolicyOptimizer(model, config, n_scheduled=10)
