"""Settings and allocator of a machine with a GPU, without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from real.model import allocator
from real.record.meter import Clock
from real.settings.config import TrainConfig
from real.settings.machine import settled_for
from real.settings.presets import preset

OWN = TrainConfig(model="folder", problems="p.json")


def chosen(config: TrainConfig, **machine: bool) -> tuple[str, str, list[str]]:
    settled, notices = settled_for(config, **machine)
    assert settled == settled.settled()
    return settled.dtype, settled.engine, notices


def test_a_gpu_gets_bfloat16_and_vllm_and_says_so() -> None:
    dtype, engine, notices = chosen(OWN, gpu=True, vllm=True)
    assert (dtype, engine) == ("bfloat16", "vllm")
    assert notices == ["chosen for this GPU: dtype bfloat16, engine vllm"]
    dtype, engine, notices = chosen(OWN, gpu=True, vllm=False)
    assert (dtype, engine) == ("bfloat16", "transformers")
    assert "not installed" in notices[0]


@pytest.mark.parametrize("vllm", [True, False])
def test_a_cpu_and_the_tiny_task_stay_in_single_precision(vllm: bool) -> None:
    assert chosen(OWN, gpu=False, vllm=vllm) == ("float32", "transformers", [])
    assert chosen(TrainConfig(), gpu=True, vllm=vllm) == ("float32", "transformers", [])


def test_what_is_asked_for_is_kept() -> None:
    asked = TrainConfig(model="m", problems="p.json", dtype="float32", engine="transformers")
    assert chosen(asked, gpu=True, vllm=True) == ("float32", "transformers", [])
    cell = preset("qwen2.5-7b/math500", "folder", engine="transformers")
    assert chosen(cell, gpu=True, vllm=True) == ("bfloat16", "transformers", [])


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings that torch's allocator gets."""
    made: list[str] = []
    core: Any = torch._C
    monkeypatch.setattr(core, "_accelerator_setAllocatorSettings", made.append, raising=False)
    monkeypatch.setattr(allocator, "_SEGMENTS", allocator._Segments())
    for name in allocator._NAMES:
        monkeypatch.delenv(name, raising=False)
    return made


def test_segments_grow_but_for_memory_that_others_open(settings: list[str]) -> None:
    allocator.grow_segments(torch.device("cuda"), vllm_inside=False)
    with allocator.fixed_segments():
        assert settings[-1] == "expandable_segments:False"
    assert settings == [f"expandable_segments:{grow}" for grow in (True, False, True)]


def test_segments_stay_fixed_elsewhere(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator.grow_segments(torch.device("cpu"), vllm_inside=False)
    allocator.grow_segments(torch.device("cuda"), vllm_inside=True)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512")
    allocator.grow_segments(torch.device("cuda"), vllm_inside=False)
    with allocator.fixed_segments():
        pass
    assert settings == []


def test_steps_on_a_gpu_have_their_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 * 10**9)
    found: list[dict[str, float]] = []
    for kind in ("cuda", "cpu"):
        clock = Clock(torch.device(kind))
        for name in ("rollout", "update"):
            with clock.phase(name):
                pass
        found.append(clock.columns(1.0, 1.0))
    assert found[0]["gpu_memory_gb"] == 3.0 and "gpu_memory_gb" not in found[1]
    assert reset == [torch.device("cuda")]
