from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
from safetensors.torch import load_file
from vllm_models import EXPERTS, make_model

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.errors import UserError
from real import TrainConfig
from real.engines import make
from real.engines.make import RestartingEngine
from real.engines.transformers_engine import TransformersEngine
from real.engines.vllm_engine import (
    EngineMemory,
    VllmHost,
    VllmSettings,
    check_version,
    collect_memory,
    refused_adapters,
    vllm_arguments,
)
from real.engines.vllm_server import weight_source
from real.engines.weights import named_weights
from real.model.policy import load_policy
from real.plan import PlannedModel, plan_memory
from real.ranks.distributed import Ranks
from real.tiny import CHECKPOINT

CONFIG = TrainConfig().settled()
CONFIG_VLLM = replace(CONFIG, engine="vllm", dtype="bfloat16")


@pytest.fixture(scope="module")
def policy():
    return load_policy(CHECKPOINT, "cpu")


class Made(str):
    """An engine that was only named."""

    update_weights, close = None, None


@pytest.fixture
def made(monkeypatch):
    """Arguments that the engines were made with; none of them starts."""
    calls = []

    def recording(*arguments, **named):
        calls.append(arguments)
        return Made(f"engine {len(calls)}")

    for name in ("ChildEngine", "VllmEngine", "VllmServerEngine"):
        monkeypatch.setattr(make, name, recording)
    return calls


def test_an_engine_is_of_the_kind_that_the_settings_name(policy, made):
    own = make.make_engine(CONFIG, policy)
    assert isinstance(own, TransformersEngine) and own.model is policy.model
    make.make_engine(replace(CONFIG, **SERVER), policy)
    assert made[0][0] == SERVER["engine_url"]
    config = replace(CONFIG, engine="vllm", restart_engine=2)
    restarting = make.make_engine(config, policy)
    assert isinstance(restarting, RestartingEngine) and restarting.left == 2


def test_vllm_gets_the_settings_of_the_run(policy, made):
    config = replace(CONFIG_VLLM, engine_timeout=77.0, max_rows=128)
    assert make.make_engine(config, policy) == "engine 1"
    settings, timeout, route, room, *_ = made[0]
    assert settings == {
        "model": str(CHECKPOINT), "max_model_len": 64, "eos_token_ids": policy.eos_token_ids,
        "pad_token_id": policy.pad_token_id, "dtype": "bfloat16", "max_rows": 128, "memory": 0.5,
        "device": "cpu", "threads": 1, "head_dtype": "float32", "reads_text": False, "cache": None,
        "n_gpus": 1, "adapter_rank": 0, "quantization": None,
    }  # fmt: skip
    assert (timeout, route.device, route.dtype) == (77.0, torch.device("cpu"), torch.bfloat16)
    assert room.total >= 2 * 100_000


def test_the_plans_bytes_reach_vllm(policy, made):
    config = replace(CONFIG, engine="vllm", engine_memory=0.3)
    make.make_engine(config, policy, memory=EngineMemory(0.6, 123_456))
    assert (made[0][0]["memory"], made[0][0]["cache"]) == (0.6, 123_456)
    arguments = vllm_arguments(VllmSettings(**{**made[0][0], "device": "cuda"}))
    assert arguments["kv_cache_memory_bytes"] == 123_456
    assert arguments["gpu_memory_utilization"] == 0.6
    assert arguments["max_num_batched_tokens"] == 8192  # else 16,384, with logits and all


def test_fp8_reaches_vllm_and_halves_the_planned_bytes_of_its_layers(policy, made):
    config = replace(CONFIG_VLLM, tis_cap=2.0, engine_quantization="fp8")
    make.make_engine(config, policy)
    assert vllm_arguments(VllmSettings(**made[0][0]))["quantization"] == "fp8"
    size = PlannedModel(policy.model.config).size()
    plans = (plan_memory(size, c, 1, 2**33) for c in (CONFIG_VLLM, config))
    whole, rounded = (plan.engine_weights for plan in plans)
    assert whole - rounded == size.n_layers * size.n_layer
    for refused in ({"tis_cap": 0.0}, {"engine": "transformers"}):
        with pytest.raises(UserError, match="fp8': belongs to engine = 'vllm' or 'vllm_inprocess'"):
            make.make_engine(replace(config, **refused), policy)


def test_a_group_of_ranks_has_one_engine(policy, made):
    two = replace(CONFIG, engine="vllm", engine_tp=2)
    config = replace(two, rule="intuitor", guard=arm("intuitor").guard)
    for rank in range(4):
        engine = make.make_engine(config, policy, Ranks(rank, 4))
        assert (engine.engine == f"engine {len(made)}") is (rank % 2 == 0)
    assert [call[0]["n_gpus"] for call in made] == [2] * 2


def test_adapters_are_applied_by_vllm_in_its_own_process(policy, made):
    config = replace(CONFIG, engine="vllm", lora_rank=20, engine_adapters=True)
    make.make_engine(config, policy)
    arguments = vllm_arguments(VllmSettings(**made[0][0]))
    assert (arguments["enable_lora"], arguments["max_lora_rank"]) == (True, 32)
    make.make_engine(replace(config, engine_adapters=False), policy)
    assert "enable_lora" not in vllm_arguments(VllmSettings(**made[1][0]))
    large = VllmSettings(**{**made[0][0], "adapter_rank": 600})
    assert refused_adapters(large) == "vLLM's largest rank is 512"


def test_an_engine_that_keeps_its_weights_gives_back_all_other_memory(monkeypatch):
    """As the plan counts it: vLLM itself gives back its cache, not what its passes have freed."""
    host = VllmHost.__new__(VllmHost)
    settings = {"model": "m", "max_model_len": 4, "eos_token_ids": (1,), "device": "cuda"}
    host.settings, host.llm = VllmSettings(**settings), Mock()
    monkeypatch.setattr(host, "_adapters", "adapters", raising=False)
    host.release()
    slept = call.sleep(0), call.release_kv_cache_memory(), call.collective_rpc(collect_memory)
    assert tuple(host.llm.mock_calls) == (*3 * [call.llm_engine.step()], *slept)
    done = []
    for name in ("synchronize", "ipc_collect", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, partial(done.append, name))
    collect_memory(SimpleNamespace(device=torch.device("cuda")))
    assert done == ["synchronize", "ipc_collect", "empty_cache"]


def test_training_with_a_nucleus_brings_a_notice():
    (notice,) = make.engine_notices(replace(CONFIG, engine="vllm", top_p=0.9))
    assert notice.startswith("top_p = 0.9: biases the ratio")
    assert make.engine_notices(replace(CONFIG, top_p=0.9)) == []
    assert make.engine_notices(replace(CONFIG, engine="vllm")) == []


def test_tied_weights_come_once_and_in_the_engines_type(policy):
    named = dict(named_weights(policy.model, torch.bfloat16))
    assert "model.embed_tokens.weight" in named
    assert "lm_head.weight" not in named
    assert {weight.dtype for weight in named.values()} == {torch.bfloat16}
    assert set(named) == {name for name, _ in policy.model.named_parameters()}
    own = dict(named_weights(policy.model))
    assert own["model.norm.weight"].dtype == torch.float32


def test_engines_that_read_checkpoints_get_weights_as_checkpoints_hold_them(tmp_path):
    """The model holds all experts of a layer in one tensor, a checkpoint each alone."""
    model = make_model(**EXPERTS)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    sent = dict(named_weights(model))
    assert sent.keys() == stored.keys() != dict(model.named_parameters()).keys()
    assert all(torch.equal(sent[name], value) for name, value in stored.items())
    base = SimpleNamespace(WeightSource=object, ParamMeta=lambda name, _, shape: (name, shape))
    shapes = dict(weight_source(base, model, None).metadata())
    assert shapes == {name: tuple(value.shape) for name, value in stored.items()}


@pytest.mark.parametrize("release", ["0.26.0", "0.34.0rc1", "0.320", "1.32.0", "dev", "None"])
def test_other_releases_are_refused_in_one_line(release):
    with pytest.raises(UserError, match=rf"^here: vLLM {release} .*0\.32 and 0\.33 are;"):
        check_version(release, "here")


SERVER = {"engine": "vllm_server", "engine_url": "http://127.0.0.1:1"}
AHEAD = {"async_level": 1}
REFILLED = {"max_num_gen_batches": 2, "drop_uniform": True}
OWN = {"problems": "amc", "model": "x"}
FROZEN = GuardConfig().set(frs=False, mps=False, rcsu=False, label_from="frozen")


@pytest.mark.parametrize(
    ("changes", "world", "words"),
    [
        ({"engine": "vllm", "engine_adapters": True}, 1, "engine_adapters: belongs to engine = 'v"),
        ({"lora_rank": 4, "engine_adapters": True}, 1, "engine_adapters: belongs to engine = 'v"),
        ({"engine": "vllm_server"}, 1, "engine_url = None: belongs to engine = 'vllm_server'"),
        ({**SERVER, "engine_url": "http://a,http://b,http://c"}, 2, "3 servers for 2 ranks; start"),
        ({**SERVER, "engine": "vllm"}, 1, "engine_url = .*belongs to engine = 'vllm_server'"),
        ({**SERVER, "stop": (".",)}, 1, "stop = '.': not with engine = 'vllm_server'.*take vllm"),
        ({"restart_engine": 2}, 1, "restart_engine = 2: .* use vllm"),
        ({"engine": "vllm_inprocess"}, 2, "2 ranks.*take vllm"),
        ({"engine": "vllm", "engine_tp": 3}, 3, "engine_tp = 3: does not divide the model's 2 att"),
        ({"engine": "vllm", "restart_engine": 1}, 2, "2 ranks.*guard-train resume"),
        ({**AHEAD, "engine": "vllm_inprocess"}, 1, "async_level = 1: .*trainer's process; take v"),
        ({**AHEAD, "engine": "vllm", "restart_engine": 1}, 1, "async_level = 1: .*guard-train res"),
        ({**AHEAD, "rule": "coverrl", "tiny_verifies": True}, 1, "async_level = 1: .*samples more"),
        ({**SERVER, **AHEAD, "rule": "intuitor"}, 1, "async_level = 1: .*token statistics"),
        ({**AHEAD, "rule": "one_shot_em"}, 1, "async_level = 1: .*has neither rewards nor"),
        ({"rule": "one_shot_em", "kl_coef": 0.1}, 1, "kl_coef = 0.1: rule one_shot_em"),
        ({"rule": "one_shot_em", "drop_uniform": True}, 1, "drop_uniform = True"),
        ({"rule": "one_shot_em", "tis_cap": 2.0}, 1, "tis_cap = 2.0"),
        ({"rule": "scope", "guard": FROZEN}, 1, "makes new labels on every visit"),
        ({"max_num_gen_batches": 2}, 1, "max_num_gen_batches > 1: needs drop_uniform"),
        ({**REFILLED, **AHEAD}, 1, "max_num_gen_batches > 1: needs drop_uniform, and votes not a"),
        ({"kept_layers": 1}, 1, "kept_layers = 1: without gradient_checkpointing"),
        ({"flips_below": 0.5, "epochs": 1}, 1, "flips_below: is looked at after visit 2, and epo"),
        ({"answer_check": "both"}, 1, "answer_check = 'both': must be one of"),
        ({"log": ("mlflow",)}, 1, "one of tensorboard, wandb"),
        ({"log": ("wandb", "wandb")}, 1, "name each of them at most once"),
        ({"tiny_wrong": 0.3}, 1, "tiny_wrong, tiny_lead: for tiny_task = closed alone"),
        ({"tiny_task": "collatz", "tiny_lead": 60}, 1, "for tiny_task = closed alone"),
        ({"tiny_task": "closed", "tiny_verifies": True}, 1, "no model of tiny_task = closed"),
        ({"tiny_task": "collatz", **OWN}, 1, "tiny_task = collatz: problems = amc are not the ti"),
        ({"tiny_verifies": True, **OWN}, 1, "tiny_verifies = true: problems = amc are not the ti"),
        ({"problem_seed": 1, **OWN}, 1, "problem_seed = 1: problems = amc are not the tiny"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(policy, changes, world, words):
    with pytest.raises(UserError, match=words) as refused:
        config = TrainConfig(**changes).settled()
        make.make_engine(config, policy, Ranks(0, world))
    assert "\n" not in str(refused.value)
