"""Numbers of a batch: seconds, tokens and losses for the trace, and a line of them for readers."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lab.progress import Bar
from real.engines.rollouts import Rollouts
from real.model.machine import in_phase
from real.record.journal import Journal, Visited
from real.record.terminal import NUMBERS, unread
from real.update.optimizer import Step

Progress = bool | Callable[[float], None]
"""Draw a bar, draw none, or call with the share of the run that is done."""


class Clock:
    """Adds up seconds per phase; a GPU is waited for at the end of each."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = defaultdict[str, float](float)
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
        self.seconds[f"seconds_{name}"] += time.perf_counter() - start

    def columns(
        self, n_sampled: float, n_trained: float, flops: float, peak: float, world: int
    ) -> dict[str, float]:
        """Seconds per phase and of the whole step, tokens per second, and the use of a GPU.

        The phases `rollout` and `further` sampled `n_sampled` tokens; `update` trained `n_trained`,
        with `flops` operations. Each of `world` ranks has a GPU of at most `peak` a second.
        """
        seconds, whole = dict(self.seconds), time.perf_counter() - self._start
        sampling = seconds["seconds_rollout"] + seconds.get("seconds_further", 0.0)
        columns = {
            **seconds,
            "seconds_step": whole,
            "sampled_per_second": n_sampled / sampling,
            "trained_per_second": n_trained / seconds["seconds_update"],
        }
        if self._device.type == "cuda":
            columns |= {
                "gpu_memory_gb": torch.cuda.max_memory_allocated(self._device) / 1e9,
                "tokens_per_gpu_second": n_sampled / (whole * world),
                "share_of_peak": flops / (seconds["seconds_update"] * peak * world),
            }
        return columns


@contextlib.contextmanager
def reporter(
    progress: Progress, total: int, log: Journal, done: int = 0
) -> Iterator[Callable[[int, Visited, Mapping[str, Any]], None]]:
    """Show how far the run is, by a function of a batch's number, votes and row of the steps."""
    recent: deque[Mapping[str, Any]] = deque(maxlen=max(1, total // 20))
    words = ""
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
    silent = progress is not True
    with Bar(total=total, initial=done, unit="step", bar_format=form, disable=silent) as bar:

        def show(phase: str) -> None:
            bar.set_postfix_str(phase or words, refresh=bool(phase))

        def report(step: int, visited: Visited, row: Mapping[str, Any]) -> None:
            nonlocal words
            log.note(progress=step / total)
            if visited.columns:  # there are none on ranks that read no answers
                recent.append({**row, "unread": unread(visited.columns)})
            words = _in_words(log.manifest.extra.get("evaluation", {}).get("last", {}), recent)
            show("")
            bar.update()
            NUMBERS.get()(f"step {step}/{total}, {words}")
            if callable(progress):
                progress(step / total)

        log.show = show
        yield report


_SHOWN = {
    "match rate": ("majority_ratio", ".2f"),
    "labels": ("n_labels", ".0f"),
    "unread": ("unread", ".0%"),
    "loss": ("loss", ".2g"),
    "reward": ("reward", ".2f"),
}


def _in_words(evaluation: Mapping[str, Any], recent: Iterable[Mapping[str, Any]]) -> str:
    words = [f"pass@1 {evaluation['pass_at_1']:.3f}"] if "pass_at_1" in evaluation else []
    for name, (column, form) in _SHOWN.items():
        known = [row[column] for row in recent if math.isfinite(row.get(column, math.nan))]
        words += [f"{name} {np.mean(known):{form}}"] if known else []
    return ", ".join(words)


def sampled_row(rollouts: Rollouts, top_p: float) -> dict[str, float]:
    """Return length, truncated share and token entropy of the sampled responses.

    The entropy is the engine's mean per token, or else its unbiased estimate, in nats: the mean of
    minus the log-prob, unless a nucleus cut the distribution.
    """
    entropy = np.nan
    if rollouts.entropy_PV is not None:
        lengths_PV = rollouts.lengths_PN.double()
        entropy = float((rollouts.entropy_PV * lengths_PV).sum() / lengths_PV.sum())
    elif top_p == 1:
        logprobs_n = rollouts.logprobs_PNT[rollouts.mask_PNT()].double()
        entropy = -float(logprobs_n[logprobs_n.isfinite()].mean())
    return {
        "mean_length": float(rollouts.lengths_PN.float().mean()),
        "truncated": 1.0 - float(rollouts.finished_PN.double().mean()),
        "entropy": entropy,
    }


def step_row(done: list[Step], with_kl: bool) -> dict[str, float]:
    """Return means over the scheduled steps, or those taken; `kl` is over tokens, in nats."""
    taken = [s for s in done if s.taken]
    n_tokens, n_forward = sum(s.n_tokens for s in taken), sum(s.n_forward for s in done)
    kl = sum(s.kl * s.n_forward for s in done) / n_forward if n_forward else np.nan

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else np.nan

    return {
        "lr": mean([s.lr for s in done]),
        "update_norm": mean([s.update_norm for s in done]),
        "loss": mean([s.loss for s in taken]),
        "grad_norm": mean([s.grad_norm for s in taken]),
        "clip_fraction": sum(s.n_clipped for s in taken) / n_tokens if n_tokens else np.nan,
        "tokens": n_forward,
        "n_updates": len(taken),
        "n_refused": sum(s.fault is not None for s in done),
        "n_left_out": sum(s.n_left_out for s in done),
        **({"kl": kl} if with_kl else {}),
    }
