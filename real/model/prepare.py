"""Preparation of settings for this machine, and of a loaded model for training."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

from lab.errors import UserError
from real.model.lora import add_lora
from real.model.policy import pick_device
from real.settings.config import TrainConfig
from real.settings.machine import settled_for


def prepare_training(model: Any, config: TrainConfig) -> None:
    """Make a loaded model trainable as the settings say: adapters, gradient checkpointing.

    Raises:
        UserError: the model cannot.
    """
    if config.lora_rank:
        add_lora(model, config.lora_rank, config.lora_alpha, config.lora_targets, config.seed)
    if config.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UserError(
                f"gradient_checkpointing = true: {type(model).__name__} has no support for it; "
                "leave it out and lower micro_tokens"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})


def on_this_machine(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """Return settled settings with the choices of `settled_for` for this machine, and a notice."""
    on_gpu = pick_device(config.device).type == "cuda"
    return settled_for(config, on_gpu, importlib.util.find_spec("vllm") is not None)


@contextlib.contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Let torch use so many threads; as many as before if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
