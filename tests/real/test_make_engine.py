from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lab.arms import arm
from lab.errors import UserError
from real import TrainConfig
from real.engines import make
from real.engines.transformers_engine import TransformersEngine
from real.engines.weights import named_weights
from real.engines.wrappers import RestartingEngine
from real.model.policy import load_policy
from real.tiny import CHECKPOINT

CONFIG = TrainConfig().settled()


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(CHECKPOINT, "cpu")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments that the engines were made with; none of them starts."""
    calls: list[Any] = []

    def recording(*arguments: Any, **named: Any) -> str:
        calls.append(arguments)
        return f"engine {len(calls)}"

    for name in ("ChildEngine", "VllmEngine", "VllmServerEngine"):
        monkeypatch.setattr(make, name, recording)
    return calls


def test_by_default_the_trainers_own_model_samples(policy: Any) -> None:
    engine = make.make_engine(CONFIG, policy, CHECKPOINT)
    assert isinstance(engine, TransformersEngine)
    assert engine.model is policy.model


def test_vllm_gets_the_settings_of_the_run(policy: Any, made: list[Any]) -> None:
    config = replace(CONFIG, engine="vllm", engine_timeout=77.0, dtype="bfloat16", max_rows=128)
    assert make.make_engine(config, policy, CHECKPOINT) == "engine 1"
    settings, timeout, device, dtype, room, *_ = made[0]
    assert settings == {
        "model": str(CHECKPOINT), "max_model_len": 64, "eos_token_ids": policy.eos_token_ids,
        "pad_token_id": policy.pad_token_id, "dtype": "bfloat16", "max_rows": 128, "memory": 0.5,
        "device": "cpu", "threads": 1, "stats": False, "head_dtype": "float32",
        "reads_text": False,
    }  # fmt: skip
    assert (timeout, device, dtype) == (77.0, torch.device("cpu"), torch.bfloat16)
    assert room.total >= 2 * 100_000


@pytest.mark.parametrize(("rule", "stats"), [("intuitor", True), ("scrl", True), ("ttrl", False)])
def test_vllm_looks_at_logits_for_rules_that_need_it(
    policy: Any, made: list[Any], rule: str, stats: bool
) -> None:
    config = replace(CONFIG, engine="vllm", rule=rule, guard=arm(rule).guard)
    make.make_engine(config, policy, CHECKPOINT)
    assert made[0][0]["stats"] is stats


def test_restarts_are_for_engines_that_can_be_killed(policy: Any, made: list[Any]) -> None:
    engine: Any = make.make_engine(
        replace(CONFIG, engine="vllm", restart_engine=2), policy, CHECKPOINT
    )
    assert isinstance(engine, RestartingEngine)
    assert engine.left == 2
    for kind in ("transformers", "vllm_inprocess"):
        with pytest.raises(UserError, match=r"restart_engine = 2: .* use vllm"):
            make.make_engine(replace(CONFIG, engine=kind, restart_engine=2), policy, CHECKPOINT)


def test_a_server_needs_its_address_and_nothing_else_has_one(policy: Any, made: list[Any]) -> None:
    url = "http://127.0.0.1:8000"
    config = replace(CONFIG, engine="vllm_server")
    make.make_engine(replace(config, engine_url=url), policy, CHECKPOINT)
    assert made[0][0] == url
    for wrong in (config, replace(CONFIG, engine="vllm", engine_url=url)):
        with pytest.raises(UserError, match="belongs to engine = 'vllm_server'"):
            make.make_engine(wrong, policy, CHECKPOINT)


def test_training_with_a_nucleus_brings_a_notice() -> None:
    (notice,) = make.engine_notices(replace(CONFIG, engine="vllm", top_p=0.9))
    assert notice.startswith("top_p = 0.9: biases the ratio")
    assert make.engine_notices(replace(CONFIG, top_p=0.9)) == []
    assert make.engine_notices(replace(CONFIG, engine="vllm")) == []


def test_tied_weights_come_once_and_in_the_engines_type(policy: Any) -> None:
    named = dict(named_weights(policy.model, torch.bfloat16))
    assert "model.embed_tokens.weight" in named
    assert "lm_head.weight" not in named
    assert {weight.dtype for weight in named.values()} == {torch.bfloat16}
    assert set(named) == {name for name, _ in policy.model.named_parameters()}
    own = dict(named_weights(policy.model))
    assert own["model.norm.weight"].dtype == torch.float32
