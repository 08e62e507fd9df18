"""Out of memory: which setting to turn, in place of a stack trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from lab.errors import UserError

_CPU_MESSAGE = "DefaultCPUAllocator"
"""torch has no class of its own for a failed allocation in main memory."""

_KNOBS = {
    "rollout": "lower max_rows, or with vLLM engine_memory",
    "update": "lower micro_tokens, or set gradient_checkpointing, dtype bfloat16 or lora_rank",
    "load": "set dtype bfloat16 or lora_rank, or take a smaller model",
}


@contextlib.contextmanager
def memory_limit(phase: str) -> Iterator[None]:
    """Tell the user which settings make a phase smaller when it runs out of memory.

    Args:
        phase: one of `rollout`, `update`, `load`.

    Raises:
        UserError: in place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _user_error(phase, "GPU", error) from error
    except RuntimeError as error:
        if _CPU_MESSAGE not in str(error):
            raise
        raise _user_error(phase, "main", error) from error


def _user_error(phase: str, kind: str, error: Exception) -> UserError:
    first = str(error).split(". ")[0].splitlines()[0]
    return UserError(f"{phase}: out of {kind} memory ({first}); {_KNOBS[phase]}")
