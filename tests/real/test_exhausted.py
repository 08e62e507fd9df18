"""Out of memory: the phase and the settings that make it smaller are named."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.base.errors import UserError
from real import TrainConfig, train
from real.model.policy import in_phase, load_policy, phase_of
from real.tiny import CHECKPOINT

SMALL = TrainConfig(n_problems=2, n_votes=4, n_samples=4, batch_size=2, epochs=1, eval_every=0)
TOO_MUCH = 2**58


def too_much(*_: Any, **__: Any) -> None:
    torch.empty(TOO_MUCH)


NCCL = """NCCL error in: /pytorch/NCCLUtils.cpp:93, unhandled cuda error, NCCL version 2.28.9
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. More"), "GPU memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "GPU"),
        (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), "GPU memory"),
        (torch.distributed.DistBackendError(NCCL), r"GPU memory \(Cuda failure 2 'out of memory'"),
        (RuntimeError("std::bad_alloc"), "main memory"),
        (MemoryError(), "main memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "main memory"),
    ],
    ids=["torch", "cublas", "driver", "nccl", "c++", "python", "system"],
)
def test_every_spelling_names_phase_and_settings(error: Exception, words: str):
    phases = {
        "update": "lower max_tokens_per_microbatch",
        "sync": "lower engine_memory",
        "other": "lora_rank",
    }
    for phase, remedy in phases.items():
        told = pytest.raises(UserError, match=f"{phase}: out of {words}.*{remedy}")
        with told, in_phase("run"), in_phase(phase):
            raise error


def test_a_bug_carries_its_innermost_phase():
    told = pytest.raises(ValueError, match="no such row")
    with told as raised, in_phase("run"), in_phase("evaluation"), in_phase("rollout"):
        raise ValueError("no such row")
    assert phase_of(raised.value) == "rollout"


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        ("real.engines.transformers_engine.TransformersEngine.update_weights", "sync"),
        ("real.vote.further.ExtraRollouts.after_step", "sync"),
        ("real.record.evaluation.evaluate", "evaluation"),
        ("real.record.checkpoint.Checkpoints.save", "checkpoint"),
        ("real.trainer.prepare", "start"),
        ("real.vote.decide.Supervisor.decide", "guard"),
    ],
)
def test_no_phase_lacks_a_limit(
    function: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(function, too_much)
    words = rf"^{phase}: out of main memory .*; .*(lora_rank|max_rows)"
    with pytest.raises(UserError, match=words):
        train(SMALL, tmp_path / "run", progress=False)


def test_missing_attention_kernel_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("real.model.policy.is_flash_attn_2_available", lambda: False)
    with pytest.raises(UserError, match="attention = 'flash_attention_2': its package"):
        load_policy(CHECKPOINT, attention="flash_attention_2")
    eager = load_policy(CHECKPOINT, attention="eager").model
    assert eager.config._attn_implementation == "eager"
