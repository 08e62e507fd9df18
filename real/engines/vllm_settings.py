"""Settings of a vLLM engine, and the releases of vLLM that this package is written for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.base.errors import UserError

SUPPORTED = ((0, 32), (0, 33))
"""Major and minor version; their Python interfaces were compared with all calls made here."""


ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`."""


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
    cache: int | None = None
    """Bytes of the cache on each GPU; vLLM finds them from the share if None."""
    n_gpus: int = 1
    """GPUs, or processes on a CPU, over which every matrix is split."""
    adapter_rank: int = 0
    """Of adapters that the engine applies to the weights; 0 for none."""
    device: str = "cpu"
    threads: int | None = None
    """Threads of torch on a CPU; unchanged if None."""
    reads_text: bool = False
    """Be able to end a response at a text (`Sampling.stop`)."""


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
        }
    return common | {
        "enforce_eager": True,
        "block_size": 32,
        "max_num_batched_tokens": max(8192, settings.max_model_len, settings.max_rows),
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
    from vllm.model_executor import models  # pyright: ignore[reportMissingImports]

    config = json.loads((Path(settings.model) / "config.json").read_text())
    known = models.ModelRegistry.models
    names = [name for name in config.get("architectures") or () if name in known]
    if names and models.supports_lora(known[names[0]].load_model_cls()):
        return None
    return f"vLLM applies none to {', '.join(config.get('architectures') or ['this model'])}"


def check_version(version: str, where: str) -> None:
    """Refuse a release with another interface.

    Args:
        version: of vLLM, such as `0.32.0`.
        where: it was found, for the message.

    Raises:
        UserError: the release is not supported.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) not in SUPPORTED:
        raise UserError(
            f"{where}: vLLM {version} is not supported, {_names()} are; "
            "pip install 'ttrl-guard-lab[vllm]'"
        )


def _names() -> str:
    return " and ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
