"""Seconds per phase, a batch's means, the progress bar, torch's threads."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from tqdm import tqdm

from real.model.memory import memory_limit
from real.record.journal import Journal
from real.update.step import Fault, Step

Progress = bool | Callable[[float], None]
"""Draw a bar, draw none, or call with the share of the run that is done."""


class Clock:
    """Adds up seconds per phase; a phase may be entered several times.

    A GPU is waited for at the end of each, else its work would count elsewhere.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._start = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase; without memory it names settings, see `memory_limit`."""
        start = time.perf_counter()
        with memory_limit(name):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        column = f"seconds_{name}"
        self.seconds[column] = self.seconds.get(column, 0.0) + time.perf_counter() - start

    def columns(self, n_sampled: float, n_trained: float) -> dict[str, float]:
        """Seconds per phase and of the whole step, tokens per second, on a GPU its peak memory.

        Args:
            n_sampled: response tokens of the phases `rollout` and `further`.
            n_trained: those of the phase `update`.
        """
        seconds, further = self.seconds, self.seconds.get("seconds_further", 0.0)
        return {
            **seconds,
            "seconds_step": time.perf_counter() - self._start,
            "sampled_per_second": n_sampled / (seconds["seconds_rollout"] + further),
            "trained_per_second": n_trained / seconds["seconds_update"],
            **self._memory(),
        }

    def _memory(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        return {"gpu_memory_gb": torch.cuda.max_memory_allocated(self._device) / 1e9}


@contextlib.contextmanager
def reporter(
    progress: Progress, total: int, log: Journal, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """A function to call after each of `total` steps, of which `done` were made before."""
    # The bar's rate, hence its remaining time, is that of this process's steps alone.
    with tqdm(total=total, initial=done, unit="batch", disable=progress is not True) as bar:

        def report(step: int) -> None:
            log.note(progress=step / total)
            bar.update()
            if callable(progress):
                progress(step / total)

        log.show = bar.set_postfix_str
        yield report


def note_faults(log: Journal, faults: Counter[Fault], step: int) -> None:
    """Note numbers of a batch that were not finite, and forget them."""
    counted = {fault: n for fault, n in faults.items() if n}
    if counted:
        refused = sum(n for fault, n in counted.items() if fault is not Fault.LOG_PROB)
        log.note_faults(refused, {fault.notice: n for fault, n in counted.items()}, step)
    faults.clear()


def step_row(done: list[Step]) -> dict[str, float]:
    """Means over the scheduled steps, or over those taken where only they have a value."""
    taken = [s for s in done if s.taken]
    n_tokens = sum(s.n_tokens for s in taken)

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else np.nan

    return {
        "lr": mean([s.lr for s in done]),
        "update_norm": mean([s.update_norm for s in done]),
        "loss": mean([s.loss for s in taken]),
        "grad_norm": mean([s.grad_norm for s in taken]),
        "clip_fraction": sum(s.n_clipped for s in taken) / n_tokens if n_tokens else np.nan,
        "tokens": sum(s.n_forward for s in done),
        "n_updates": len(taken),
        "n_refused": sum(s.refused for s in done),
        "n_left_out": sum(s.n_left_out for s in done),
    }


@contextlib.contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Let torch use so many threads; as many as before if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
