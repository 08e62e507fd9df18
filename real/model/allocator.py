"""How torch's allocator divides a GPU's memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

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
        device: of the trainer.
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
