"""One run on a GPU, or several that were given their shares of its memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from lab.errors import UserError
from real.model.policy import pick_device
from real.settings.config import TrainConfig


@contextlib.contextmanager
def card_held(config: TrainConfig) -> Iterator[None]:
    """Hold the GPU of this process: alone where vLLM takes all memory that is left, else shared.

    Free memory does not tell of another run: its engine may be asleep. Runs in other containers are
    not seen. The hold ends with the process, however that ends.

    Raises:
        UserError: another run is on the GPU, and one of the two takes all that is left.
    """
    if pick_device(config.device).type != "cuda" or os.name != "posix":
        yield
        return
    index = torch.cuda.current_device()
    path = Path(tempfile.gettempdir(), f"guard-train-{_identity(index)}.lock")
    takes_all = config.engine in ("vllm", "vllm_inprocess") and config.engine_memory is None
    with contextlib.ExitStack() as stack:
        descriptor = _opened(path)
        if descriptor is not None:
            stack.callback(os.close, descriptor)
            _lock(descriptor, index, takes_all)
        yield


def _identity(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _opened(path: Path) -> int | None:
    """Open a file that all users may lock; None where that is not possible."""
    for extra in (0, os.O_CREAT):  # a folder for all may forbid to create what another has made
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | extra, 0o666)
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o666)
            return descriptor
    return None


def _lock(descriptor: int, index: int, alone: bool) -> None:
    import fcntl

    try:
        fcntl.lockf(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"GPU {index}: another run is on it, and vLLM takes all memory that is left; wait for "
            "it, choose another GPU with CUDA_VISIBLE_DEVICES, or give both runs an engine_memory"
        ) from None
    except OSError:  # no locks in that folder
        return
