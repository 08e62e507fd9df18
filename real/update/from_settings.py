"""The loss and the optimizer that a run's settings describe."""

from __future__ import annotations

from real.settings.config import TrainConfig, rule_of
from real.update.grpo import MEAN_OF_LOSS, LossConfig
from real.update.optimizer import OptimizerConfig


def loss_config(config: TrainConfig) -> LossConfig:
    """Return the options of the loss for settled settings."""
    return LossConfig(
        objective="entropy" if rule_of(config).loss == "entropy" else "policy",
        kind=MEAN_OF_LOSS[config.loss],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        temperature=config.temperature,
        max_tokens=config.max_response_tokens or 1,
        drop_uniform=config.drop_uniform,
        micro_tokens=config.micro_tokens,
        kl_coef=config.kl_coef,
    )


def optimizer_config(config: TrainConfig) -> OptimizerConfig:
    """Return the optimizer and its schedule for settled settings."""
    return OptimizerConfig(
        lr=(config.lr or 0.0) * config.step_factor,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        master_weights=config.master_weights,
        average=config.average,
        offload=config.offload_optimizer,
        max_refused=config.max_refused,
    )
