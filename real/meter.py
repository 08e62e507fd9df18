"""Seconds per phase, the progress bar, torch's threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from tqdm import tqdm

from lab.store import Recorder

Progress = bool | Callable[[float], None]
"""Draw a bar, draw none, or call with the share of the run that is done."""


class Clock:
    """Adds up seconds per phase; a GPU is waited for, else its work would count elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase."""
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[f"seconds_{name}"] = time.perf_counter() - start


@contextlib.contextmanager
def reporter(progress: Progress, total: int, log: Recorder) -> Iterator[Callable[[int], None]]:
    """A function to call after each of `total` steps."""
    with tqdm(total=total, unit="batch", disable=progress is not True) as bar:

        def report(step: int) -> None:
            log.note(progress=step / total)
            bar.update()
            if callable(progress):
                progress(step / total)

        yield report


@contextlib.contextmanager
def torch_threads(wanted: int | None) -> Iterator[None]:
    """Let torch use so many threads; as many as before if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
