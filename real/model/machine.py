"""What a run takes of this machine: its device, torch's threads, and the GPU as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from lab.base.errors import UserError
from real.model.policy import pick_device
from real.settings.config import TrainConfig
from real.settings.presets import installed, settled_for


def on_this_machine(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """Return settled settings with the choices of `settled_for` for this machine, and a notice."""
    on_gpu = pick_device(config.device).type == "cuda"
    return settled_for(config, on_gpu, installed("vllm"))


@contextlib.contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Let torch use so many threads; as many as before if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def card_held(config: TrainConfig) -> Iterator[None]:
    """Hold the GPU of this process: alone where vLLM takes all memory that is left, else shared.

    Free memory does not tell of another run: its engine may be asleep. Runs in other containers are
    not seen. The hold ends with the process, however that ends.
    """
    if pick_device(config.device).type != "cuda" or os.name != "posix":
        yield
        return
    index = torch.cuda.current_device()
    uuid = torch.cuda.get_device_properties(index).uuid
    path = Path(tempfile.gettempdir(), f"guard-train-{uuid}.lock")
    takes_all = config.engine in ("vllm", "vllm_inprocess") and config.engine_memory is None
    with contextlib.ExitStack() as stack:
        descriptor = _opened(path)
        if descriptor is not None:
            stack.callback(os.close, descriptor)
            _lock(descriptor, index, takes_all)
        yield


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
