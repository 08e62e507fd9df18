"""AdamW over mini-batches: schedule, clipping, refused steps, and how far each step went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from real.grpo import Group, LossConfig, backward, kept


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    lr: float
    """Peak learning rate."""
    warmup_ratio: float = 0.03
    """Share of the scheduled steps with linearly growing learning rate; cosine to 0 after it."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled optimizer step."""

    lr: float
    taken: bool = False
    """The optimizer moved; false where the mini-batch was empty or its gradient was refused."""
    refused: bool = False
    """The gradient held a NaN or an infinity."""
    update_norm: float = 0.0
    """L2 norm of the change of all parameters together; 0 for a step not taken."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    n_tokens: int = 0
    n_clipped: int = 0
    n_forward: int = 0


class PolicyOptimizer:
    """Takes one optimizer step per mini-batch of groups."""

    def __init__(
        self, model: Any, loss: LossConfig, config: OptimizerConfig, n_scheduled: int
    ) -> None:
        """Prepare AdamW for `n_scheduled` steps, left-out ones included."""
        self.model = model
        self.loss = loss
        self.config = config
        self.n_scheduled = n_scheduled
        self.n_done = 0
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._adamw = torch.optim.AdamW(
            self.parameters,
            lr=config.lr,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case, so that all runs share it.
        """
        lr = self.config.lr * schedule(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        self.n_done += 1
        batch = kept(groups, self.loss.drop_uniform)
        if not batch:
            return Step(lr)
        self._adamw.zero_grad(set_to_none=False)
        done = backward(self.model, batch, self.loss)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not math.isfinite(grad_norm := norm.item()):
            return Step(lr, refused=True, n_tokens=done.n_tokens, n_forward=done.n_forward)
        return Step(
            lr=lr,
            taken=True,
            update_norm=self._move(lr),
            loss=done.loss,
            grad_norm=grad_norm,
            n_tokens=done.n_tokens,
            n_clipped=done.n_clipped,
            n_forward=done.n_forward,
        )

    @torch.no_grad()
    def _move(self, lr: float) -> float:
        """Let AdamW move; returns the L2 norm of what it changed."""
        before = [p.clone() for p in self.parameters]
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        change = [new - old for new, old in zip(self.parameters, before, strict=True)]
        return torch.nn.utils.get_total_norm(change).item()


def schedule(done: int, n_scheduled: int, warmup_ratio: float) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine that would reach 0 at the end.

    Args:
        done: scheduled steps before this one.
        n_scheduled: scheduled steps of the whole run.
        warmup_ratio: share of them that warms up.
    """
    warmup = math.ceil(warmup_ratio * n_scheduled)
    if done < warmup:
        return (done + 1) / warmup
    progress = (done - warmup) / max(1, n_scheduled - warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))
