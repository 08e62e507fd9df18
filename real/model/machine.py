"""The machine of a run: its device, threads and memory, and errors for want of memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

from lab.base.errors import UserError
from real.settings.groups import EngineSettings

_MAIN = ("defaultcpuallocator", "bad_alloc", "cannot allocate memory")
"""Parts of messages of failed allocations in main memory, for which torch has no class."""
_GPU = ("cublas_status_alloc_failed", "cudnn_status_alloc_failed", "cusolver_status_alloc_failed")
"""The same of CUDA's libraries, which allocate without torch."""
_LIBRARIES = ("cuda", "nccl", "hip")
"""One of them is in the message of an allocation by the driver or by NCCL."""

_NOTE = "phase: "
_UPDATE = (
    "lower max_tokens_per_microbatch, or set gradient_checkpointing, dtype bfloat16, "
    "offload_optimizer or lora_rank"
)
_SAMPLING = "rollout", "further", "evaluation"
_KNOBS = {
    **dict.fromkeys(_SAMPLING, "lower max_rows, or with vLLM engine_memory"),
    "grade": "lower max_tokens_per_microbatch or max_rows, or with vLLM engine_memory",
    "update": _UPDATE,
    "sync": f"with vLLM lower engine_memory; else {_UPDATE}",
    "load": "set dtype bfloat16 or lora_rank, or take a smaller model",
    "run": "with vLLM lower engine_memory; else set dtype bfloat16 or lora_rank, or lower max_rows",
}


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("device = 'cuda': torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


@contextlib.contextmanager
def in_phase(phase: str) -> Iterator[None]:
    """Note the phase in errors; for want of memory they name the settings that make it smaller."""
    try:
        yield
    except Exception as error:
        if (kind := _kind(error)) is not None:
            # The first sentence of the line that tells of memory; NCCL puts others before it.
            lines = str(error).splitlines() or [type(error).__name__]
            line = next((line for line in lines if "memory" in line.lower()), lines[0])
            line = line.strip().split(". ")[0]
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


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Segments:
    """The setting of torch's allocator, which cannot be read back."""

    grow = False

    def set(self, grow: bool) -> None:
        """Let segments grow or not."""
        core: Any = torch._C
        core._accelerator_setAllocatorSettings(f"expandable_segments:{grow}")
        self.grow = grow


SEGMENTS = Segments()


def grow_segments(device: torch.device, vllm_inside: bool) -> None:
    """Let torch's segments of a GPU's memory grow: passes of many sizes leave gaps in fixed ones.

    Not where the user has set the allocator, or vLLM, whose sleep needs fixed ones, runs inside.
    """
    given = any(name in os.environ for name in ALLOCATOR_VARIABLES)
    if device.type == "cuda" and not given and not vllm_inside:
        SEGMENTS.set(True)


@contextlib.contextmanager
def fixed_segments() -> Iterator[None]:
    """Allocate from fixed segments, which other processes can open through CUDA IPC."""
    if not SEGMENTS.grow:
        yield
        return
    SEGMENTS.set(False)
    yield
    SEGMENTS.set(True)


def keep_freed_memory(device: torch.device) -> None:
    """Let glibc keep freed blocks for a model on a CPU: new ones cost a page fault per 4 KiB."""
    if device.type != "cpu":
        return
    with contextlib.suppress(AttributeError, OSError):  # of other C libraries
        set_option = ctypes.CDLL(None).mallopt
        set_option(-4, 0)  # M_MMAP_MAX
        set_option(-1, -1)  # M_TRIM_THRESHOLD


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
def card_held(config: EngineSettings, device: str) -> Iterator[None]:
    """Hold the GPU of this process: alone where vLLM takes all memory that is left, else shared.

    Another run's engine may be asleep in free memory. Runs in other containers are not seen.
    """
    if pick_device(device).type != "cuda" or os.name != "posix":
        yield
        return
    index = torch.cuda.current_device()
    uuid = torch.cuda.get_device_properties(index).uuid
    takes_all = config.engine_kind.shares_gpu and config.engine_memory is None
    with _opened(Path(tempfile.gettempdir(), f"guard-train-{uuid}.lock")) as file:
        if file is not None:
            import fcntl

            try:
                fcntl.lockf(file, (fcntl.LOCK_EX if takes_all else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"GPU {index}: another run is on it, and vLLM takes all memory that is left; "
                    "wait for it, choose another GPU with CUDA_VISIBLE_DEVICES, or give both runs "
                    "an engine_memory"
                ) from None
            except OSError:  # no locks in that folder
                pass
        yield


def _opened(path: Path) -> contextlib.AbstractContextManager[TextIO | None]:
    """Open a file that all users may lock; None where that is not possible."""
    for extra in (0, os.O_CREAT):  # a folder for all may forbid to create what another has made
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | extra, 0o666)
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o666)
            return os.fdopen(descriptor)
    return contextlib.nullcontext()
