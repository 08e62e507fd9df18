"""Out of memory: which setting to turn, in place of a stack trace."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import torch

from lab.errors import UserError

_MAIN = ("defaultcpuallocator", "bad_alloc", "cannot allocate memory")
"""Parts of messages of failed allocations in main memory, for which torch has no class."""
_GPU = ("cublas_status_alloc_failed", "cudnn_status_alloc_failed", "cusolver_status_alloc_failed")
"""The same of CUDA's libraries, which allocate without torch."""
_LIBRARIES = ("cuda", "nccl", "hip")
"""One of them is in the message of an allocation by the driver or by NCCL."""

_SAMPLE = "lower max_rows, or with vLLM engine_memory"
_UPDATE = (
    "lower micro_tokens, or set gradient_checkpointing, dtype bfloat16, offload_optimizer or "
    "lora_rank"
)
_KNOBS = {
    "rollout": _SAMPLE,
    "further": _SAMPLE,
    "evaluation": _SAMPLE,
    "grade": "lower micro_tokens or max_rows, or with vLLM engine_memory",
    "update": _UPDATE,
    "sync": f"with vLLM lower engine_memory; else {_UPDATE}",
    "load": "set dtype bfloat16 or lora_rank, or take a smaller model",
    "run": "with vLLM lower engine_memory; else set dtype bfloat16 or lora_rank, or lower max_rows",
}


@contextlib.contextmanager
def memory_limit(phase: str) -> Iterator[None]:
    """Tell the user which settings make a phase smaller when it runs out of memory.

    Of nested limits the innermost one counts.

    Args:
        phase: of a batch, or `load`, `evaluation`, `checkpoint`, or `run` for all else.

    Raises:
        UserError: in place of the error of torch, CUDA, NCCL or Python.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        kind = _kind(error)
        if kind is None:
            raise
        line = _line(error)
        remedy = _KNOBS.get(phase, _KNOBS["run"])
        raise UserError(f"{phase}: out of {kind} memory ({line}); {remedy}") from error


def _kind(error: Exception) -> str | None:
    """Return the kind of memory that was exhausted; None if the error is another one."""
    words = str(error).lower()
    if isinstance(error, torch.OutOfMemoryError) or any(name in words for name in _GPU):
        return "GPU"
    if "out of memory" in words and any(name in words for name in _LIBRARIES):
        return "GPU"
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if full or isinstance(error, MemoryError) or any(name in words for name in _MAIN):
        return "main"
    return None


def _line(error: Exception) -> str:
    """Return the first sentence of the line that tells of memory; NCCL puts others before it."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if "memory" in line.lower()), lines[0])
    return line.strip().split(". ")[0]
