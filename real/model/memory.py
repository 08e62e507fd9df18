"""Memory of a run: phases and remedies in errors where it runs out, and torch's GPU allocator."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import torch

from lab.base.errors import UserError

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


_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class _Segments:
    """The setting of torch's allocator, which cannot be read back."""

    grow = False

    def set(self, grow: bool) -> None:
        """Set it; the older name is that of torch before 2.9."""
        core: Any = torch._C
        name = "_accelerator_setAllocatorSettings"
        setter = getattr(core, name, None) or torch.cuda.memory._set_allocator_settings
        setter(f"expandable_segments:{grow}")
        self.grow = grow


_SEGMENTS = _Segments()


def grow_segments(device: torch.device, vllm_inside: bool) -> None:
    """Let torch's segments of a GPU's memory grow: passes of many sizes leave gaps in fixed ones.

    Does nothing where the user has set the allocator by its environment variables.

    Args:
        vllm_inside: whether vLLM runs in this process; its sleep needs fixed segments.
    """
    given = any(name in os.environ for name in _NAMES)
    if device.type == "cuda" and not given and not vllm_inside:
        _SEGMENTS.set(True)


@contextlib.contextmanager
def fixed_segments() -> Iterator[None]:
    """Allocate from fixed segments, which other processes can open through CUDA IPC."""
    grew = _SEGMENTS.grow
    if grew:
        _SEGMENTS.set(False)
    yield
    if grew:
        _SEGMENTS.set(True)
