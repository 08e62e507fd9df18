"""Out of memory: the phase and the settings that make it smaller are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lab.errors import UserError
from real import TrainConfig, train
from real.model.memory import memory_limit
from real.model.policy import load_policy
from real.tiny import CHECKPOINT
from real.update.optimizer import PolicyOptimizer

SMALL = TrainConfig(n_problems=2, n_votes=4, n_samples=4, batch_size=2, epochs=1, eval_every=0)
TOO_MUCH = 2**58


def too_much(*_: Any, **__: Any) -> None:
    torch.empty(TOO_MUCH)


def test_update_names_its_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PolicyOptimizer, "step", too_much)
    with pytest.raises(UserError, match=r"update: out of main memory .*; lower micro_tokens, or"):
        train(SMALL, progress=False)


def test_sampling_names_its_settings(monkeypatch: pytest.MonkeyPatch):
    from real.engines.transformers_engine import TransformersEngine

    monkeypatch.setattr(TransformersEngine, "sample", too_much)
    with pytest.raises(UserError, match=r"rollout: out of main memory .*; lower max_rows"):
        train(SMALL, progress=False)


def test_loading_names_its_settings(monkeypatch: pytest.MonkeyPatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", too_much)
    with pytest.raises(UserError, match=r"load: out of main memory .*; set dtype bfloat16"):
        load_policy(CHECKPOINT)


def test_a_gpu_error_is_told_from_other_errors():
    with pytest.raises(UserError, match="update: out of GPU memory"), memory_limit("update"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. More words")
    with pytest.raises(RuntimeError, match="shapes"), memory_limit("update"):
        raise RuntimeError("shapes do not match")


def test_missing_attention_kernel_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("real.model.policy.is_flash_attn_2_available", lambda: False)
    with pytest.raises(UserError, match="attention = 'flash_attention_2': its package"):
        load_policy(CHECKPOINT, attention="flash_attention_2")
    eager = load_policy(CHECKPOINT, attention="eager").model
    assert eager.config._attn_implementation == "eager"
