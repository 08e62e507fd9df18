"""All calls of vLLM's Python interface except its NCCL transfer. Run with 0.32 on a CPU.

The order of a training step on a GPU: `sleep(2)` drops weights and cache, the trainer updates,
`wake_up(["weights"])`, the new weights are loaded, `wake_up(["kv_cache"])`, and the prefix cache
is emptied: it holds keys and values of the old weights, which vLLM does not check. On a CPU
sleeping does nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lab.base.errors import UserError, first_line
from real.engines.rollouts import (
    EngineDied,
    EngineError,
    Prompts,
    Response,
    Rollouts,
    Sampling,
    Stages,
    check_prompts,
    request_params,
    request_seeds,
    to_rollouts,
)
from real.engines.vllm_settings import (
    VllmSettings,
    check_version,
    refused_adapters,
    vllm_arguments,
)
from real.engines.weight_transfer import Delivery, Handle, Sent, opened
from real.engines.weights import named_weights


def start_loading(worker: Any) -> None:
    """Prepare a worker for new weights, as its `reload_weights` does."""
    reload, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        reload.initialize_layerwise_reload(worker.model_runner.get_model())


def load_part(worker: Any, part: Sent) -> None:
    """Load the weights of one bucket."""
    _, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        worker.model_runner.get_model().load_weights(part.weights(worker.rank))


def end_loading(worker: Any) -> None:
    """Finish, after all weights have come."""
    reload, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        reload.finalize_layerwise_reload(worker.model_runner.get_model(), worker.model_config)
    repack_tied_head(worker)
    collect_buckets(worker)


def collect_buckets(worker: Any) -> None:
    """Close the trainer's buckets on a GPU."""
    if worker.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()


def refusal(worker: Any, buckets: list[Handle]) -> str | None:
    """Return why a worker cannot open its bucket; None if it can."""
    try:
        opened(buckets[worker.rank if len(buckets) > 1 else 0])
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def repack_tied_head(worker: Any) -> None:
    """Pack the new embeddings for a tied output head.

    On a CPU vLLM multiplies by a packed copy of each weight. A reload packs the layers that get
    weights; a tied head gets none, and would keep the old ones.
    """
    head: Any = getattr(worker.model_runner.get_model(), "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


def _reload() -> tuple[Any, Any]:
    """Import vLLM's modules, which need not be installed where this one is imported."""
    from vllm import config  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.model_loader import reload  # pyright: ignore[reportMissingImports]

    return reload, config


Progress = Callable[[], None]
Weights = Iterable[tuple[str, torch.Tensor]]

_FORCED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The engine core runs in this process: weights are passed as tensors."""
_DEFAULTS = {
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
        """Import vLLM and load the model.

        Raises:
            UserError: vLLM is not installed.
            EngineDied: it cannot start.
        """
        self.settings = settings
        self.version: int | None = None
        """None: no weights since the start, or since `release`."""
        vllm = _import_vllm()
        self._owns_group = world_size() == 0
        self._sampling_params = vllm.SamplingParams
        self._refusals = (ValueError, vllm.exceptions.VLLMClientError)
        self.refused_adapters = refused_adapters(settings)
        """Why no adapters are applied, if that was asked for."""
        self._adapters: Any = None
        if self.refused_adapters is not None:
            settings = self.settings = replace(settings, adapter_rank=0)
        with _died("starting"), _process_unchanged():
            self._llm = vllm.LLM(**vllm_arguments(settings))

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        seeds: Sequence[int],
        progress: Progress = lambda: None,
    ) -> Rollouts:
        """Sample `n` responses to each prompt, response i of a prompt with its seed plus i.

        Raises:
            UserError: a prompt is empty or too long.
            EngineError: there are no weights of the trainer's, or other ones drew a response.
            EngineDied: vLLM failed.
        """
        check_prompts(prompts, n, sampling.max_tokens, self.settings.max_model_len)
        if self.version is None:
            raise EngineError("vLLM: has no weights of the trainer's, call update_weights first")
        try:
            requests = (request_params(n, sampling, s, self.settings.eos_token_ids) for s in seeds)
            params = [self._sampling_params(**values, flat_logprobs=True) for values in requests]
        except self._refusals as error:  # such as a temperature above 2
            raise EngineError(f"vLLM: {first_line(error)}") from error
        with _died("sampling"):
            drawn = self._generate(prompts, params, progress)
        responses = [[self._checked(one) for one in row] for row in drawn]
        return to_rollouts(responses, n, self.settings.pad_token_id, self.version)

    def load(self, weights: Weights | Delivery, version: int) -> None:
        """Replace all weights, empty the prefix cache of the old ones, and name the new ones.

        Raises:
            EngineDied: vLLM failed.
        """
        self.version = None
        with _died("loading weights"):
            if self.settings.device == "cuda":
                torch.cuda.empty_cache()
            self._llm.wake_up(["weights"])
            self._load(weights)
            self._wake(version)

    def adapt(self, adapters: Path, version: int) -> None:
        """Replace the adapters of weights that were loaded, and name both together.

        Raises:
            EngineDied: vLLM failed.
        """
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        self.version = None
        with _died("loading adapters"):
            made = LoRARequest("trained", 1, str(adapters), load_inplace=True)
            self._llm.llm_engine.add_lora(made)
            self._adapters = LoRARequest("trained", 1, str(adapters))
            self._wake(version)

    def refusal(self, buckets: list[Handle]) -> str | None:
        """Return why buckets of the trainer cannot be opened; None if they can."""
        refusals = self._llm.collective_rpc(refusal, args=(buckets,))
        return next((why for why in refusals if why is not None), None)

    def release(self) -> None:
        """Free the GPU of weights and cache; does nothing on a CPU."""
        self.version = None
        with _died("falling asleep"):
            if self._adapters is None or self.settings.device == "cpu":
                self._llm.sleep(2)
            else:
                self._llm.sleep(0)
                self._llm.release_kv_cache_memory()  # the weights stay

    def close(self) -> None:
        """Stop vLLM, and destroy the process group if vLLM made it."""
        from vllm.distributed import parallel_state  # pyright: ignore[reportMissingImports]

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        if self._owns_group:
            parallel_state.cleanup_dist_env_and_memory()

    def _wake(self, version: int) -> None:
        """Wake up completely, with an empty prefix cache."""
        if not self._llm.wake_up(None if self._adapters else ["kv_cache"]):
            raise EngineDied("vLLM: did not wake up")
        if not self._llm.reset_prefix_cache():
            raise EngineDied("vLLM: the prefix cache was not emptied, requests are running")
        self._llm.update_weight_version(str(version))
        self.version = version

    def _load(self, weights: Weights | Delivery) -> None:
        rpc = self._llm.collective_rpc
        if self.settings.n_gpus == 1:
            rpc("reload_weights", kwargs={"weights_iterator": weights})
            rpc(repack_tied_head)
            rpc(collect_buckets)
            return
        # Tensors do not cross over to vLLM's own processes: each of them opens the buckets.
        if not isinstance(weights, Delivery):
            raise TypeError("several GPUs load from buckets alone")
        rpc(start_loading)
        for part in weights.parts():
            rpc(load_part, args=(part,))
        rpc(end_loading)

    def _generate(
        self, prompts: Prompts, params: list[Any], progress: Progress
    ) -> list[list[_Drawn]]:
        """Return (P, n) responses, with a sign of life after each step."""
        texts = [{"prompt_token_ids": [*prompt]} for prompt in prompts]
        self._llm.enqueue(texts, params, use_tqdm=False, lora_request=self._adapters)
        engine = self._llm.llm_engine
        done: dict[int, list[_Drawn]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    row = sorted(output.outputs, key=lambda one: one.index)
                    done[int(output.request_id)] = [_Drawn.of(one) for one in row]
            progress()
        # Requests are numbered in the order in which they were given.
        return [done[number] for number in sorted(done)]

    def _checked(self, drawn: _Drawn) -> Response:
        if drawn.versions != {str(self.version)}:
            named = ", ".join(sorted(drawn.versions)) or "none"
            raise EngineError(
                f"vLLM: a response was drawn by version {named} of the weights instead of "
                f"{self.version}"
            )
        if drawn.ended_by not in ("stop", "length"):
            raise EngineDied(f"vLLM: a response ended by {drawn.ended_by!r}")
        return drawn.response


class _Drawn(NamedTuple):
    """One response of vLLM's, in arrays: tens of thousands may wait for the last one."""

    response: Response
    versions: set[str]
    ended_by: str

    @classmethod
    def of(cls, output: Any) -> _Drawn:
        found, ended_by = output.logprobs, output.finish_reason
        logprobs = None if found is None else np.array(found.logprobs, np.float32)
        tokens = np.array(output.token_ids, np.int32)
        versions = {span.version for span in output.weight_versions or ()}
        return cls(Response(tokens, logprobs, ended_by == "stop"), versions, ended_by)


def _import_vllm() -> Any:
    os.environ.update(_FORCED)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm  # pyright: ignore[reportMissingImports]

        # First, since other releases lack names that are imported next.
        check_version(vllm.__version__, "engine = 'vllm'")
        import vllm.exceptions  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"engine = 'vllm': cannot be imported ({error}); pip install 'ttrl-guard-lab[vllm]'"
        ) from error
    return vllm


@contextmanager
def _died(doing: str) -> Iterator[None]:
    """Turn the exceptions of a failing vLLM into one line."""
    try:
        yield
    except EngineError:
        raise
    # EngineDeadError is an Exception of its own kind; what breaks first is mostly a RuntimeError.
    except Exception as error:
        hint = ""
        if "out of memory" in str(error).lower():
            hint = "; lower engine_memory, max_rows or micro_tokens"
        elif "free memory" in str(error).lower():
            hint = "; lower engine_memory"
        raise EngineDied(
            f"vLLM: failed while {doing} ({type(error).__name__}: {first_line(error)}){hint}"
        ) from error


def world_size() -> int:
    """Return the number of ranks of this process's group, 0 without one."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 0


@contextmanager
def _process_unchanged() -> Iterator[None]:
    """Restore what starting vLLM changes in this process: random states, the number of threads."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    n_threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(n_threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


class VllmEngine:
    """vLLM in the trainer's process: the fastest transfer of weights.

    A GPU kernel that hangs also hangs the trainer; `real.engines.child_engine` can be killed.
    """

    queues = True

    def __init__(self, settings: VllmSettings) -> None:
        """Start it.

        Raises:
            UserError: vLLM is not installed, or this is one of several ranks.
            EngineDied: it cannot start.
        """
        if world_size() > 1:
            raise UserError(
                "engine = 'vllm_inprocess': cannot share a process with torch.distributed, "
                "use vllm, which has a process of its own on every rank"
            )
        self._host: VllmHost | None = VllmHost(settings)

    @property
    def host(self) -> VllmHost:
        """The engine, which must not be closed."""
        if self._host is None:
            raise EngineError("vLLM: the engine is closed")
        return self._host

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt; see `VllmHost.sample`."""
        seeds = request_seeds(generator, len(prompts), n)
        return self.host.sample(prompts, n, sampling, seeds)

    def release(self) -> None:
        """Free the GPU's memory."""
        self.host.release()

    def update_weights(self, model: Any, version: int) -> Stages:
        """Load the model's weights."""
        # Copies: vLLM may keep the tensors, and the optimizer writes in place.
        weights = ((name, weight.clone()) for name, weight in named_weights(model))
        self.host.load(weights, version)
        return {}

    def close(self) -> None:
        """Stop the engine."""
        if self._host is not None:
            self._host.close()
        self._host = None
