"""Seconds per phase, a batch's means, the progress bar, torch's threads."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lab.progress import Bar
from real.engines.rollouts import Rollouts
from real.model.memory import in_phase
from real.plan.sizes import card_named
from real.record.journal import Journal, Visited
from real.record.terminal import show_numbers, unread
from real.update.optimizer import Fault, Step

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
        """Time one phase, which errors name, see `in_phase`."""
        start = time.perf_counter()
        with in_phase(name):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        column = f"seconds_{name}"
        self.seconds[column] = self.seconds.get(column, 0.0) + time.perf_counter() - start

    def columns(
        self, n_sampled: float, n_trained: float, flops: float, world: int
    ) -> dict[str, float]:
        """Seconds per phase and of the whole step, tokens per second, and the use of a GPU.

        Args:
            n_sampled: response tokens of the phases `rollout` and `further`.
            n_trained: those of the phase `update`.
            flops: operations of the phase `update`.
            world: ranks, each with a GPU.
        """
        seconds, further = self.seconds, self.seconds.get("seconds_further", 0.0)
        whole = time.perf_counter() - self._start
        columns = {
            **seconds,
            "seconds_step": whole,
            "sampled_per_second": n_sampled / (seconds["seconds_rollout"] + further),
            "trained_per_second": n_trained / seconds["seconds_update"],
        }
        if self._device.type == "cuda":
            card = card_named(torch.cuda.get_device_name(self._device))
            peak = np.nan if card is None else card.flops * world
            columns |= {
                "gpu_memory_gb": torch.cuda.max_memory_allocated(self._device) / 1e9,
                "tokens_per_gpu_second": n_sampled / (whole * world),
                "share_of_peak": flops / (seconds["seconds_update"] * peak),
            }
        return columns


@contextlib.contextmanager
def reporter(
    progress: Progress, total: int, log: Journal, done: int = 0
) -> Iterator[Callable[[int, Visited, Mapping[str, Any]], None]]:
    """Show how far the run is.

    Args:
        progress: as for `real.train`.
        log: of the run; its phases are shown as well.

    Yields:
        A function to call after each batch, with its number, its votes and its row of the steps.
    """
    recent: deque[dict[str, float]] = deque(maxlen=max(1, total // 20))
    shown = [""]
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
    how: Any = {"unit": "step", "bar_format": form, "disable": progress is not True}
    with Bar(total=total, initial=done, **how) as bar:

        def show(phase: str, words: str = "") -> None:
            shown[:] = [words or shown[0]]
            bar.set_postfix_str(phase or shown[0], refresh=bool(phase))

        def report(step: int, visited: Visited, row: Mapping[str, Any]) -> None:
            log.note(progress=step / total)
            recent.append(_numbers(visited, row))
            words = _in_words(log.manifest.extra.get("evaluation", {}).get("last", {}), recent)
            show("", words)
            bar.update()
            show_numbers(f"step {step}/{total}, {words}")
            if callable(progress):
                progress(step / total)

        log.show = show
        yield report


def _numbers(visited: Visited, row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a batch that its progress shows; none on ranks that read no answers."""
    if not visited.columns:
        return {}
    names = {"match rate": "majority_ratio", "loss": "loss", "reward": "reward"}
    return {"unread": unread(visited.columns)} | {n: row[column] for n, column in names.items()}


def _in_words(evaluation: Mapping[str, Any], recent: Sequence[Mapping[str, float]]) -> str:
    """Return the last evaluation's pass@1 and means over the last batches, NaN left out."""
    words = [f"pass@1 {evaluation['pass_at_1']:.3f}"] if "pass_at_1" in evaluation else []
    forms = {"match rate": ".2f", "unread": ".0%", "loss": ".2g", "reward": ".2f"}
    for name, form in forms.items():
        known = [row[name] for row in recent if math.isfinite(row.get(name, math.nan))]
        words += [f"{name} {np.mean(known):{form}}"] if known else []
    return ", ".join(words)


def note_faults(log: Journal, faults: Counter[Fault], step: int) -> None:
    """Note numbers of a batch that were not finite, and forget them."""
    counted = {fault: n for fault, n in faults.items() if n}
    if counted:
        refused = sum(n for fault, n in counted.items() if fault is not Fault.LOG_PROB)
        log.note_faults(refused, {fault.notice: n for fault, n in counted.items()}, step)
    faults.clear()


def sampled_row(rollouts: Rollouts, top_p: float) -> dict[str, float]:
    """Return length, truncated share and token entropy of the sampled responses.

    Args:
        rollouts: (P, V) votes.
    """
    return {
        "mean_length": float(rollouts.lengths_PN.float().mean()),
        "truncated": 1.0 - float(rollouts.finished_PN.double().mean()),
        "entropy": _entropy(rollouts, top_p),
    }


def _entropy(rollouts: Rollouts, top_p: float) -> float:
    """Return the engine's mean entropy per token, or else its unbiased estimate, in nats.

    The expectation of minus the log-prob of a token is the entropy that it was drawn with, unless
    a nucleus cut it.
    """
    if rollouts.entropy_PV is not None:
        lengths_PV = rollouts.lengths_PN.double()
        return float((rollouts.entropy_PV * lengths_PV).sum() / lengths_PV.sum())
    if top_p < 1:
        return np.nan
    logprobs_n = rollouts.logprobs_PNT[rollouts.mask_PNT()].double()
    return -float(logprobs_n[logprobs_n.isfinite()].mean())


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
