"""Phases of a run in errors, and the settings to change when memory runs out."""

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

_NOTE = "phase: "
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
def in_phase(phase: str) -> Iterator[None]:
    """Note the phase in errors, and name the settings that make it smaller when memory runs out.

    Of nested phases the innermost one counts.

    Args:
        phase: of a batch, or another one of the run; `run` for all that has no name, which is not
            noted.

    Raises:
        UserError: in place of an error of torch, CUDA, NCCL or Python for want of memory.
    """
    try:
        yield
    except Exception as error:
        kind = _kind(error)
        if kind is not None:
            line = _line(error)
            remedy = _KNOBS.get(phase, _KNOBS["run"])
            raise UserError(f"{phase}: out of {kind} memory ({line}); {remedy}") from error
        if phase != "run" and not phase_of(error):
            error.add_note(f"{_NOTE}{phase}")
        raise


def phase_of(error: BaseException) -> str:
    """Return the phase that an error came from; empty if it is not noted."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE))
    return next(notes, "").removeprefix(_NOTE)


def _kind(error: Exception) -> str | None:
    """Return the kind of memory that was exhausted; None if the error is another one."""
    if not isinstance(error, (RuntimeError, MemoryError, OSError)):
        return None
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
