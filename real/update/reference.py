"""The reference policy of the KL term: the model before training. Made only when KL costs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from real.model.lora import adapters_off, has_adapters
from real.update.grpo import Reference
from real.update.logprobs import Scorer
from real.update.packing import PackedRows


def initial_reference(
    scorer: Scorer, shard: Callable[[Scorer], None] = lambda _: None
) -> Reference:
    """Log-probs of the policy as it is now, however it is trained later.

    With LoRA that is the model with its adapters off and costs no memory; else a frozen copy.
    A run that is resumed must call this before it loads its checkpoint.

    Args:
        scorer: of the policy, not yet sharded.
        shard: what is to be done with a copy.
    """
    if has_adapters(scorer.model):
        return _Disabled(scorer)
    frozen = copy.deepcopy(scorer).requires_grad_(False)
    shard(frozen)
    return _Frozen(frozen)


class _Frozen:
    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    @torch.no_grad()
    def __call__(self, rows: PackedRows, temperature: float) -> Tensor:
        return self.scorer(rows, temperature).logprobs_n


class _Disabled:
    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    @torch.no_grad()
    def __call__(self, rows: PackedRows, temperature: float) -> Tensor:
        with adapters_off(self.scorer.model):
            return self.scorer(rows, temperature).logprobs_n
