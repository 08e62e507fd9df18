"""vLLM: its settings, and all calls of its Python interface except its NCCL transfer.

Run with 0.32 on a CPU. A training step on a GPU: `sleep(2)` drops weights and cache, the trainer
updates, `wake_up(["weights"])`, the new weights are loaded, `wake_up(["kv_cache"])`, and the prefix
cache is emptied: it holds keys and values of the old weights, which vLLM does not check.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lab.base.errors import UserError, first_line, install
from real.engines.exchange import Delivery, Handle, Sent, refused
from real.engines.rollouts import (
    EngineDied,
    EngineError,
    Prompts,
    Rollouts,
    SampledResponse,
    Sampling,
    Stages,
    check_prompts,
    request_params,
    request_seeds,
    to_rollouts,
)
from real.engines.weights import named_weights

SUPPORTED = ("0.32", "0.33")
"""Releases whose Python interfaces were compared with all calls made here."""
_LAST_STEPS = 3
"""Steps after the last response in which vLLM forgets it, and what it had scheduled ahead."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class EngineMemory(NamedTuple):
    """Memory that vLLM may take of a GPU."""

    share: float
    """Of all its memory, for weights and cache and all; 0 for other engines."""
    cache: int | None = None
    """Bytes of the cache; None where vLLM is to find them from the share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of a vLLM engine; plain values, since it may live in another process."""

    model: str
    """Folder of the checkpoint; its weights are replaced by the trainer's before sampling."""
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    """Tokens that end a response; no others do."""
    pad_token_id: int = 0
    dtype: str = "float32"
    head_dtype: str = "model"
    max_rows: int = 512
    memory: float = 0.5
    cache: int | None = None
    """Bytes of the cache on each GPU; vLLM finds them from the share if None."""
    n_gpus: int = 1
    """GPUs, or processes on a CPU, over which every matrix is split."""
    adapter_rank: int = 0
    """Of adapters that the engine applies to the weights; 0 for none."""
    device: str = "cpu"
    threads: int | None = None
    reads_text: bool = False
    """Be able to end a response at a text (`Sampling.stop`)."""
    quantization: str | None = None
    """Of the weights as they are loaded, by vLLM's name."""


def batched_tokens(max_rows: int) -> int:
    """Return the tokens of a pass of vLLM at most; by default it takes twice as many on a GPU."""
    return max(8192, max_rows)


def vllm_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM`."""
    common = {
        "model": settings.model,
        # The trainer's weights replace them before anything is sampled.
        "load_format": "dummy",
        "skip_tokenizer_init": not settings.reads_text,
        "dtype": settings.dtype,
        "hf_overrides": {"head_dtype": settings.head_dtype},
        "seed": 0,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_rows,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "disable_log_stats": True,
        "tensor_parallel_size": settings.n_gpus,
        "quantization": settings.quantization,
    }
    if settings.adapter_rank:
        rank = next(rank for rank in ADAPTER_RANKS if rank >= settings.adapter_rank)
        common |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    if settings.device == "cuda":
        return common | {
            # Refused at the start if it is not free; the bytes decide on the cache if given.
            "gpu_memory_utilization": settings.memory,
            "kv_cache_memory_bytes": settings.cache,
            "enable_sleep_mode": True,
            "max_num_batched_tokens": batched_tokens(settings.max_rows),
        }
    return common | {
        "enforce_eager": True,
        "block_size": 32,
        "max_num_batched_tokens": max(batched_tokens(settings.max_rows), settings.max_model_len),
        # A prompt read in pieces draws tokens that are dropped and rewinds a seed's generator,
        # which generators on a CPU cannot do.
        "enable_chunked_prefill": False,
    }


def refused_adapters(settings: VllmSettings) -> str | None:
    """Return why vLLM cannot apply adapters; None if it can, or if there are none."""
    if not settings.adapter_rank:
        return None
    if settings.adapter_rank > ADAPTER_RANKS[-1]:
        return f"vLLM's largest rank is {ADAPTER_RANKS[-1]}"
    from vllm.model_executor import models

    config = json.loads((Path(settings.model) / "config.json").read_text())
    known = models.ModelRegistry.models
    names = [name for name in config.get("architectures") or () if name in known]
    if names and models.supports_lora(known[names[0]].load_model_cls()):
        return None
    return f"vLLM applies none to {', '.join(config.get('architectures') or ['this model'])}"


def check_version(version: str, where: str) -> None:
    """Refuse a release such as `0.26.0`, with another interface, found at `where`."""
    if not re.match(rf"({'|'.join(map(re.escape, SUPPORTED))})(?!\d)", version):
        raise UserError(
            f"{where}: vLLM {version} is not supported, {' and '.join(SUPPORTED)} are; "
            f"{install('vllm')}"
        )


def load_part(worker: Any, part: Sent, first: bool) -> None:
    """Load the weights of one bucket into a worker, in the steps of its `reload_weights`."""
    # vLLM need not be installed where this module is imported.
    from vllm import config
    from vllm.model_executor.model_loader import reload

    model = worker.model_runner.get_model()
    with config.set_current_vllm_config(worker.vllm_config):
        if first:
            reload.initialize_layerwise_reload(model)
        model.load_weights(part.weights(worker.rank))
        if part.last:
            reload.finalize_layerwise_reload(model, worker.model_config)
    if part.last:
        repack(worker)
        collect_memory(worker)


def collect_memory(worker: Any) -> None:
    """Close the trainer's buckets on a GPU, and give back what loading and passes have freed."""
    if worker.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def refusal(worker: Any, buckets: list[Handle]) -> str | None:
    """Return why a worker cannot open its bucket; None if it can."""
    return refused(buckets[worker.rank if len(buckets) > 1 else 0])


def repack(worker: Any) -> None:
    """Pack the new weights of experts, and the new embeddings for a tied output head.

    On a CPU vLLM multiplies by a packed copy of each weight. A reload packs the layers that get
    weights; a tied head gets none, and experts are packed once: both would keep the old ones.
    """
    model: Any = worker.model_runner.get_model()
    head: Any = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None and layer.w13_weight.device.type == "cpu":
            kernel.fused_experts.process_weights_after_loading(layer)


DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Threads that vLLM binds to cores would stay bound for the trainer too.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class VllmHost:
    """A vLLM engine and the version of its weights."""

    def __init__(self, settings: VllmSettings) -> None:
        self.settings = settings
        self.progress: Callable[[], None] = lambda: None
        self.version: int | None = None
        """None: no weights since the start, or since `release`."""
        vllm = _import_vllm()
        group = torch.distributed
        self._owns_group = not (group.is_available() and group.is_initialized())
        self._sampling_params = vllm.SamplingParams
        self._refusals = (ValueError, vllm.exceptions.VLLMClientError)
        self.refused_adapters = refused_adapters(settings)
        self._adapters: Any = None
        if self.refused_adapters is not None:
            settings = self.settings = replace(settings, adapter_rank=0)
        with _died("starting"), _process_unchanged():
            self.llm: Any = vllm.LLM(**vllm_arguments(settings))

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, seeds: Sequence[int]
    ) -> Rollouts:
        """Sample `n` responses to each prompt, response i with its seed plus i."""
        check_prompts(prompts, n, sampling.max_tokens, self.settings.max_model_len)
        if self.version is None:
            raise EngineError("vLLM: has no weights of the trainer's, call update_weights first")
        try:
            requests = (request_params(n, sampling, s, self.settings.eos_token_ids) for s in seeds)
            params = [self._sampling_params(**values, flat_logprobs=True) for values in requests]
        except self._refusals as error:  # such as a temperature above 2
            raise EngineError(f"vLLM: {first_line(error)}") from error
        done: dict[int, list[SampledResponse]] = {}
        with _died("sampling"):
            texts = [{"prompt_token_ids": [*prompt]} for prompt in prompts]
            self.llm.enqueue(texts, params, use_tqdm=False, lora_request=self._adapters)
            while self.llm.llm_engine.has_unfinished_requests():
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        row = sorted(output.outputs, key=lambda one: one.index)
                        done[int(output.request_id)] = [_in_arrays(one) for one in row]
                self.progress()
        # Requests are numbered in the order in which they were given.
        responses = [done[number] for number in sorted(done)]
        return to_rollouts(responses, n, self.settings.pad_token_id, self.version, "vLLM")

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights, empty the prefix cache of the old ones, and name the new ones."""
        self.version = None
        with _died("loading weights"):
            if self.settings.device == "cuda":
                torch.cuda.empty_cache()
            self.llm.wake_up(["weights"])
            rpc = self.llm.collective_rpc
            if self.settings.n_gpus == 1:
                rpc("reload_weights", kwargs={"weights_iterator": weights})
                rpc(repack)
                rpc(collect_memory)
            else:
                # Tensors do not cross over to vLLM's own processes: each of them opens the buckets.
                assert isinstance(weights, Delivery)
                for number, part in enumerate(weights.parts):
                    rpc(load_part, args=(part, number == 0))
            self._wake(version)

    def adapt(self, adapters: Path, version: int) -> None:
        """Replace the adapters of weights that were loaded, and name both together."""
        from vllm.lora.request import LoRARequest

        self.version = None
        with _died("loading adapters"):
            made = LoRARequest("trained", 1, str(adapters), load_inplace=True)
            self.llm.llm_engine.add_lora(made)
            self._adapters = LoRARequest("trained", 1, str(adapters))
            self._wake(version)

    def refusal(self, buckets: list[Handle]) -> str | None:
        refusals = self.llm.collective_rpc(refusal, args=(buckets,))
        return next((why for why in refusals if why is not None), None)

    def release(self) -> None:
        """Free the GPU of weights and cache; does nothing on a CPU."""
        self.version = None
        with _died("falling asleep"):
            if self._adapters is None or self.settings.device == "cpu":
                self.llm.sleep(2)
            else:
                # vLLM's own process would make these steps; else it refuses what follows.
                for _ in range(_LAST_STEPS):
                    self.llm.llm_engine.step()
                self.llm.sleep(0)
                self.llm.release_kv_cache_memory()  # the weights stay
                self.llm.collective_rpc(collect_memory)

    def close(self) -> None:
        """Stop vLLM, and destroy the process group if vLLM made it."""
        from vllm.distributed import parallel_state

        if self.llm is None:
            return
        self.llm.llm_engine.engine_core.shutdown()
        self.llm = None
        if self._owns_group:
            parallel_state.cleanup_dist_env_and_memory()

    def _wake(self, version: int) -> None:
        if not self.llm.wake_up(None if self._adapters else ["kv_cache"]):
            raise EngineDied("vLLM: did not wake up")
        if not self.llm.reset_prefix_cache():
            raise EngineDied("vLLM: the prefix cache was not emptied, requests are running")
        self.llm.update_weight_version(str(version))
        self.version = version


def _in_arrays(output: Any) -> SampledResponse:
    """Return a response of vLLM's; tens of thousands may wait for the last one."""
    flat, tokens = output.logprobs, np.array(output.token_ids, np.int32)
    logprobs = None if flat is None else np.array(flat.logprobs, np.float32)
    versions = {span.version for span in output.weight_versions or ()}
    return SampledResponse(tokens, logprobs, output.finish_reason, versions)


def _import_vllm() -> Any:
    # The engine core runs in this process: weights are passed as tensors.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm

        # First, since other releases lack names that are imported next.
        check_version(vllm.__version__, "engine = 'vllm'")
        import vllm.exceptions
    except ImportError as error:
        raise UserError(
            f"engine = 'vllm': cannot be imported ({error}); {install('vllm')}"
        ) from error
    return vllm


@contextmanager
def _died(doing: str) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    # EngineDeadError is an Exception of its own kind; what breaks first is mostly a RuntimeError.
    except Exception as error:
        said = str(error).lower()
        hint = "; lower engine_memory" if "out of memory" in said or "free memory" in said else ""
        hint += ", max_rows or max_tokens_per_microbatch" * ("out of memory" in said)
        raise EngineDied(
            f"vLLM: failed while {doing} ({type(error).__name__}: {first_line(error)}){hint}"
        ) from error


@contextmanager
def _process_unchanged() -> Iterator[None]:
    """Restore what starting vLLM changes in this process: random states, the number of threads."""
    states = np.random.get_state(), random.getstate()
    n_threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(n_threads)
        np.random.set_state(states[0])
        random.setstate(states[1])


def vllm_host(**settings: Any) -> VllmHost:
    """Start an engine with `VllmSettings`, as its own process does."""
    return VllmHost(VllmSettings(**settings))


class VllmEngine:
    """vLLM in the trainer's process, the fastest transfer; a GPU kernel that hangs hangs both."""

    def __init__(self, settings: VllmSettings) -> None:
        self.host = VllmHost(settings)
        self.release, self.close = self.host.release, self.host.close

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        return self.host.sample(prompts, n, sampling, request_seeds(generator, len(prompts), n))

    def update_weights(self, model: Any, version: int) -> Stages:
        # Copies: vLLM may keep the tensors, and the optimizer writes in place.
        weights = ((name, weight.clone()) for name, weight in named_weights(model))
        self.host.load(weights, version)
        return {}
