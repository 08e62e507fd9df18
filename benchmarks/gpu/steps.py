"""Sections of whole training steps, with scripted answers."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from record import Report
from shapes import MEAN_TOKENS, Setup, model_folder, train_config

import real.run
from real.engines.rollouts import Engine, Prompts, Rollouts, Sampling, Stages
from real.model.policy import Policy
from real.run import Run, batches
from real.settings.config import TrainConfig
from real.speed import peak_flops
from real.tiny.tasks import IDS, VOCABULARY_SIZE
from real.trainer import train_batch

PHASES = ("rollout", "grade", "guard", "update", "sync", "step")
_COLUMNS = (
    *("n_updates", "tokens_sampled", "tokens", "mean_length", "mismatch_kl"),
    *("seconds_sync_copy", "seconds_sync_load", "gpu_memory_gb", "share_of_peak"),
)

_BOX = (IDS["\\boxed{"], IDS["3"], IDS["}"])
_OTHER = IDS["7"]


class _Scripted:
    """An engine whose responses end with scripted answers: 3 in three of five, else 7.

    Where it does not sample, tokens and lengths are drawn as well, and nothing is computed.
    """

    def __init__(self, setup: Setup, vocabulary: int, inside: Engine, samples: bool) -> None:
        self.inside, self.version = inside, 0
        self._samples = samples
        self._vocabulary, self._mean = vocabulary, setup.pick(MEAN_TOKENS, 16)

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample, and write the answers over the last tokens, whose log-probs count as unknown."""
        if self._samples:
            rollouts = self.inside.sample(prompts, n, sampling, generator)
        else:
            rollouts = self._drawn(len(prompts), n, sampling.max_tokens)
        lengths_PN, device = rollouts.lengths_PN, rollouts.tokens_PNT.device
        box_PN3 = torch.tensor(_BOX, device=device).expand(*lengths_PN.shape, 3).clone()
        box_PN3[:, torch.arange(n, device=device) % 5 >= 3, 1] = _OTHER
        places_PN3 = (lengths_PN - 3).clamp(min=0)[..., None] + torch.arange(3, device=device)
        return replace(
            rollouts,
            tokens_PNT=rollouts.tokens_PNT.scatter(2, places_PN3, box_PN3),
            logprobs_PNT=rollouts.logprobs_PNT.scatter(2, places_PN3, torch.nan),
        )

    def release(self) -> None:
        self.inside.release()

    def update_weights(self, model: Any, version: int) -> Stages:
        self.version = version
        return self.inside.update_weights(model, version)

    def close(self) -> None:
        self.inside.close()

    def _drawn(self, n_prompts: int, n: int, longest: int) -> Rollouts:
        draws = torch.Generator().manual_seed(self.version)
        lengths_PN = torch.empty(n_prompts, n).exponential_(1 / self._mean, generator=draws)
        lengths_PN = lengths_PN.long().clamp(4, longest)
        shape = (*lengths_PN.shape, int(lengths_PN.max()))
        tokens_PNT = torch.randint(VOCABULARY_SIZE, self._vocabulary, shape, generator=draws)
        logprobs_PNT = torch.full(shape, -torch.tensor(self._vocabulary).log().item())
        return Rollouts(tokens_PNT, logprobs_PNT, lengths_PN, lengths_PN < longest, self.version)


def batch(setup: Setup, report: Report) -> None:
    """Batches of the 3B shape whose responses are made up: all but sampling."""
    run = _scripted(setup, _config(setup, "3B", "transformers", max_rows=16), sampled=False)
    _measure(report, run, 2, "step without sampling")


def step(setup: Setup, report: Report) -> None:
    """Batches with vLLM in a process of its own: of a shape that surely fits, then of 3B."""
    for shape, (n_steps, changes) in STEPS.items():
        run = _scripted(setup, _config(setup, shape, "vllm", **changes), logs=setup.folder)
        with closing(run.engine):
            share = _measure(report, run, n_steps, f"step, {shape}")
        del run
        setup.free()
    share *= peak_flops(setup.device) / setup.ceiling()
    report.target("update of 3B: share of a plain product's speed", share, at_least=0.3)


STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "0.5B": (1, {"max_response_tokens": 512}),
    "3B": (2, {}),
}
"""Numbers of steps that are made with vLLM, and settings."""


def _config(setup: Setup, shape: str, engine: str, **changes: Any) -> TrainConfig:
    if setup.dry:
        changes["dtype"] = "float32"
    changes |= {"model": str(model_folder(setup, shape)), "engine": engine}
    return train_config(setup, answer_check="math", **changes)


def _scripted(
    setup: Setup, config: TrainConfig, sampled: bool = True, logs: Path | None = None
) -> Run:
    make = real.run.make_engine

    def scripted(given: TrainConfig, policy: Policy, *others: Any) -> _Scripted:
        engine = make(given, policy, *others)
        return _Scripted(setup, policy.model.config.vocab_size, engine, sampled)

    real.run.make_engine = scripted
    try:
        return real.run.prepare(config, run_folder=logs)
    finally:
        real.run.make_engine = make


def _measure(report: Report, run: Run, n_steps: int, name: str) -> float:
    """Report some steps; returns the update's share of the peak in the last of them."""
    run.engine.update_weights(run.policy.model, version=0)
    row: dict[str, Any] = {}
    for number, one in enumerate(islice(batches(run.config, len(run.prompts)), n_steps), start=1):
        row = train_batch(run, one, None)[1]
        for phase in PHASES:  # at once: the section may not see the end of the next step
            report.add(f"{name} {number}: {phase}", row[f"seconds_{phase}"], "s")
    if not row["n_updates"]:
        raise RuntimeError("a batch made no update")
    for column in (column for column in _COLUMNS if column in row):
        report.add(f"{name}: {column}", row[column])
    share = row["seconds_guard"] / row["seconds_step"]
    report.target(f"{name}: share of the guard", share, at_most=1e-3)
    return row.get("share_of_peak", math.nan)
