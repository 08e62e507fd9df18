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
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lab.errors import UserError, first_line
from real.engines.requests import Response, check_prompts, request_params, to_rollouts
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling
from real.engines.token_stats import TokenStatsLog
from real.engines.vllm_stats import stats_processor
from real.engines.vllm_version import check_version

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of a vLLM engine; plain values, since it may live in another process."""

    model: str
    """Folder of the checkpoint; its weights are replaced by the trainer's before sampling."""
    max_model_len: int
    """Longest prompt and response together, tokens."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a response; no others do."""
    pad_token_id: int = 0
    dtype: str = "float32"
    head_dtype: str = "model"
    """Precision of the logits: `float32`, or `model` for that of the weights."""
    max_rows: int = 512
    """Largest number of responses that are decoded at once."""
    memory: float = 0.5
    """Share of the GPU's memory."""
    device: str = "cpu"
    threads: int | None = None
    """Threads of torch on a CPU; unchanged if None."""
    reads_text: bool = False
    """Be able to end a response at a text (`Sampling.stop`)."""
    stats: bool = False
    """Be able to compute what `Sampling.stats` asks for."""


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
        self._stats_log = TokenStatsLog() if settings.stats else None
        with _died("starting"), _process_unchanged():
            processors = None if self._stats_log is None else [stats_processor(self._stats_log)]
            self._llm = vllm.LLM(**_arguments(settings), logits_processors=processors)

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
        log = self._stats_log if sampling.stats else None
        if log is not None:
            log.watch(seed + i for seed in seeds for i in range(n))
        with _died("sampling"):
            drawn = self._generate(prompts, params, progress)
        responses = [[self._checked(one) for one in row] for row in drawn]
        rollouts = to_rollouts(responses, n, self.settings.pad_token_id, self.version)
        if log is not None:
            means = log.means(rollouts.lengths_PN.flatten().numpy())
            rollouts.entropy_PV, rollouts.certainty_PV = (m.view(-1, n) for m in means)
        return rollouts

    def load(self, weights: Weights, version: int) -> None:
        """Replace all weights, empty the prefix cache of the old ones, and name the new ones.

        Raises:
            EngineDied: vLLM failed.
        """
        self.version = None
        with _died("loading weights"):
            if self.settings.device == "cuda":
                torch.cuda.empty_cache()
            self._llm.wake_up(["weights"])
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._llm.collective_rpc(_repack_tied_head)
            if not self._llm.wake_up(["kv_cache"]):
                raise EngineDied("vLLM: did not wake up")
            if not self._llm.reset_prefix_cache():
                raise EngineDied("vLLM: the prefix cache was not emptied, requests are running")
            self._llm.update_weight_version(str(version))
        self.version = version

    def release(self) -> None:
        """Free the GPU of weights and cache; does nothing on a CPU."""
        self.version = None
        with _died("falling asleep"):
            self._llm.sleep(2)

    def close(self) -> None:
        """Stop vLLM, and destroy the process group if vLLM made it."""
        from vllm.distributed import parallel_state  # pyright: ignore[reportMissingImports]

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        if self._owns_group:
            parallel_state.cleanup_dist_env_and_memory()

    def _generate(
        self, prompts: Prompts, params: list[Any], progress: Progress
    ) -> list[list[_Drawn]]:
        """Return (P, n) responses, with a sign of life after each step."""
        texts = [{"prompt_token_ids": [*prompt]} for prompt in prompts]
        self._llm.enqueue(texts, params, use_tqdm=False)
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


def _arguments(settings: VllmSettings) -> dict[str, Any]:
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
    }
    if settings.device == "cuda":
        return common | {"gpu_memory_utilization": settings.memory, "enable_sleep_mode": True}
    return common | {
        "enforce_eager": True,
        "block_size": 32,
        "max_num_batched_tokens": max(8192, settings.max_model_len, settings.max_rows),
        # A prompt read in pieces draws tokens that are dropped and rewinds a seed's generator,
        # which generators on a CPU cannot do.
        "enable_chunked_prefill": False,
    }


def _repack_tied_head(worker: Any) -> None:
    """Pack the new embeddings for a tied output head.

    On a CPU vLLM multiplies by a packed copy of each weight. A reload packs the layers that get
    weights; a tied head gets none, and would keep the old ones.
    """
    head: Any = getattr(worker.model_runner.get_model(), "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


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
