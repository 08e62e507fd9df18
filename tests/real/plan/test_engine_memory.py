"""The memory of engines: in the trainer's process by measurement, and vLLM's by what is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from live_tensors import LiveTensors
from transformers import AutoModelForCausalLM, Qwen2Config

from lab.errors import UserError
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.plan.fit import engine_memory
from real.plan.memory import GIB, plan_memory
from real.plan.sizes import PlannedModel, read_config
from real.settings.config import TrainConfig
from real.settings.presets import preset

UNEQUAL, EQUAL = (40, 38, 36, 34), (40, 40, 40, 40)


@pytest.mark.parametrize(
    ("kv_heads", "vocabulary", "lengths", "top_p", "eos", "least"),
    [
        (2, 50, UNEQUAL, 1.0, (), 0.95),  # a mask: attention copies keys and values
        (8, 50, EQUAL, 1.0, (), 0.75),
        (8, 50, EQUAL, 1.0, (3,), 0.0),  # rows leave the batch
        (2, 20_000, EQUAL, 0.9, (), 0.9),  # the cache is small beside the logits
    ],
)
def test_an_engine_in_this_process_holds_at_most_the_planned_bytes(
    kv_heads: int,
    vocabulary: int,
    lengths: tuple[int, ...],
    top_p: float,
    eos: tuple[int, ...],
    least: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("real.engines.transformers_engine._BLOCK", 16)  # so that buffers grow
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": kv_heads}
    shape = Qwen2Config(**sizes, **heads, vocab_size=vocabulary)
    model: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
    settings: dict[str, Any] = {"max_prompt_tokens": 40, "max_rows": 24, "eval_top_p": top_p}
    n_tokens = 150 if vocabulary == 50 else 3
    config = TrainConfig(**settings, max_response_tokens=n_tokens).settled()
    plan = plan_memory(PlannedModel(shape).size(), config, 1, GIB)
    (cache,) = (part.sampling for part in plan.parts if part.name == "engine: cache")
    engine = TransformersEngine(model, eos, max_rows=24)
    prompts = [[1] * length for length in lengths]
    with LiveTensors(model.parameters()) as live:
        engine.sample(prompts, 6, Sampling(n_tokens, top_p=top_p), torch.Generator())
    assert least * cache < live.peak < 1.05 * cache


def folder_of(tmp_path: Path, name: str = "Qwen2.5-7B-Instruct") -> Path:
    read_config(name).save_pretrained(tmp_path)
    return tmp_path


def test_a_run_that_does_not_fit_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    config = preset("qwen2.5-7b/math500", "folder").settled()
    total = 140 * GIB
    with pytest.raises(
        UserError, match=r"^memory: the update needs 138 GiB.*--offload-optimizer \| --lora-rank 16"
    ) as e:
        engine_memory(config, folder_of(tmp_path), 1, total, total)
    assert "\n" not in str(e.value)
    adapted = replace(config, lora_rank=16)
    memory, (notice,) = engine_memory(adapted, folder_of(tmp_path), 1, total, total)
    assert notice.startswith("memory of each GPU in GiB: update 25, sampling 132 of 132 (weights ")
    assert notice.count("\n") == 0 and "engine: cache" in notice
    assert 0.7 < memory.share < 0.9
    plan = plan_memory(PlannedModel(read_config("Qwen2.5-7B-Instruct")).size(16), adapted, 1, total)
    assert memory.cache == plan.cache > 0
    assert plan.sampling <= plan.usable


def test_rows_whose_cache_does_not_fit_are_refused(tmp_path: Path) -> None:
    config = preset("qwen2.5-7b/math500", "folder", lora_rank=16, engine="transformers").settled()
    total = 140 * GIB
    words = r"sampling 1\d\d, of 132 GiB.*these would fit: --max-rows 64"
    with pytest.raises(UserError, match=words):
        engine_memory(config, folder_of(tmp_path), 1, total, total)
    few = replace(config, max_rows=64)
    assert engine_memory(few, folder_of(tmp_path), 1, total, total)[0].cache is None


def test_other_tenants_of_a_gpu_are_named(tmp_path: Path) -> None:
    config = preset("qwen2.5-7b/math500", "folder", lora_rank=16).settled()
    with pytest.raises(UserError, match="120 GiB of the GPU are in use"):
        engine_memory(config, folder_of(tmp_path), 1, 20 * GIB, 140 * GIB)


def test_an_asked_share_is_taken_as_it_is(tmp_path: Path) -> None:
    config = preset("qwen2.5-7b/math500", "folder", lora_rank=16, engine_memory=0.4).settled()
    folder = folder_of(tmp_path)
    memory = engine_memory(config, folder, 1, 140 * GIB, 140 * GIB)[0]
    assert memory.share == pytest.approx(0.4, abs=1e-6) and memory.cache is None
    with pytest.raises(UserError, match="no --engine-memory"):
        engine_memory(replace(config, engine_memory=0.95), folder, 1, 140 * GIB, 140 * GIB)
