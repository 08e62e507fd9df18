"""Seconds of a run on GPUs, from data sheets and assumptions or from measurements."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from guard_core.rules.rule import SECOND_VOTES
from lab.base.errors import UserError
from real.plan import WIDE, MemoryPlan, ModelSize, recomputed, trained_and_frozen, width
from real.ranks import model_copies
from real.settings.config import TrainConfig, rule_of
from real.settings.machines import Machines


class Card(NamedTuple):
    """A GPU by its data sheet."""

    memory: float
    flops: float
    """Dense bfloat16 operations per second."""
    bandwidth: float
    """Bytes per second between the GPU and its memory."""


CARDS = {
    "a100": Card(80, 312e12, 2.0e12),
    "h100": Card(80, 989e12, 3.35e12),
    "h200": Card(141, 989e12, 4.8e12),
}
_VARIANTS = {"pcie", "nvl", "mig"}
"""Words in the names of GPUs that are slower than the one of `CARDS`."""


def card_named(name: str) -> Card | None:
    """Return the GPU of that name, as CUDA gives it; None if its data sheet is not known here."""
    words = set(name.lower().replace("-", " ").split())
    cards = [card for kind, card in CARDS.items() if kind in words]
    return cards[0] if cards and not words & _VARIANTS else None


@functools.cache
def peak_flops(device: torch.device) -> float:
    """A GPU's bfloat16 operations per second: its data sheet's, else a product's; NaN for a CPU."""
    if device.type != "cuda":
        return math.nan
    card = card_named(torch.cuda.get_device_name(device))
    return card.flops if card else product_flops(device, 4096, 4096, 4096)


def product_flops(device: torch.device, m: int, k: int, n: int) -> float:
    """Return the operations per second of the fastest of some (m, k) x (k, n) bfloat16 products."""
    left, right = (torch.randn(s, device=device).bfloat16() for s in ((m, k), (k, n)))
    seconds: list[float] = []
    for _ in range(8):
        began = time.perf_counter()
        left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * m * k * n / min(seconds)


def update_flops(n_multiplied: int, config: TrainConfig) -> float:
    """Return the operations of an update per token; recomputing is none of its purpose.

    A product with a weight is two; its gradients are two more products, or one where the weight is
    frozen. Attention scores, a few per cent, are left out.
    """
    more_passes = config.scores_anew(config.tis_cap) + (config.kl_coef > 0)
    return float(((4 if config.lora_rank else 6) + 2 * more_passes) * n_multiplied)


PROMPT_TOKENS = 150
"""Of the problems that a plan assumes."""

ASSUMED = {
    # Shares of the data sheet: operations per second of an update and of sampling, and bytes per
    # second at which decoding reads weights and cache.
    "train_flops": (0.3, 0.4, 0.5),
    "sample_flops": (0.3, 0.4, 0.6),
    "bandwidth": (0.5, 0.7, 0.85),
    # Seconds per decoded token besides, and the factor on all of them with adapters in vLLM.
    "decode_overhead": (0.006, 0.003, 0.001),
    "adapters": (1.35, 1.25, 1.1),
    # Share of the shorter one of sampling and update that is hidden where both run at once.
    "overlap": (0.0, 0.5, 1.0),
    # Bytes per second: weights from the trainer to an engine; one way between GPU and main memory.
    "hand_over": (5e9, 20e9, 40e9),
    "host_link": (25e9, 50e9, 55e9),
}
"""Speeds of a GPU, of the trainer and of vLLM on it, by name. No card confirmed them."""
SLOW, USUAL, FAST = range(3)
"""Places in each row of the table."""


def assumed_rates(card: Card, pace: int = USUAL) -> dict[str, float]:
    """Return the rates of a GPU by what is assumed of all."""
    sheet = {"train_flops": card.flops, "sample_flops": card.flops, "bandwidth": card.bandwidth}
    return {name: numbers[pace] * sheet.get(name, 1.0) for name, numbers in ASSUMED.items()}


def read_measured(path: Path) -> dict[str, float]:
    """Return the rates in a file of `benchmarks/gpu/prove.py`, the last of each."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [row for one in records if not one["dry"] for row in one["measures"]]
        rates = {row["rate"]: float(row["value"]) for row in rows if "rate" in row}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"measured = {path}: no results.jsonl of prove.py ({error})") from error
    wrong = [n for n, value in rates.items() if n not in ASSUMED or not 0 <= value < math.inf]
    if wrong or not rates:
        what = f"{wrong[0]} is no rate" if wrong else "no rate was measured on a GPU"
        raise UserError(f"measured = {path}: {what}; run prove.py --part A and C")
    return rates


@dataclass(frozen=True, slots=True)
class Speed:
    """Estimated seconds of a run's phases."""

    size: ModelSize
    plan: MemoryPlan
    config: TrainConfig
    machines: Machines
    measured: Mapping[str, float] = field(default_factory=dict)
    """Rates that take the place of assumed ones."""
    pace: int = USUAL
    """That of the assumed ones: `SLOW`, `USUAL` or `FAST`."""

    @property
    def rates(self) -> dict[str, float]:
        """What was measured, and what is assumed of the rest."""
        return assumed_rates(CARDS[self.machines.gpu], self.pace) | dict(self.measured)

    @property
    def mean_tokens(self) -> int:
        """Mean tokens of a response, at most those of the longest."""
        return min(self.machines.mean_tokens, self.config.max_response_tokens or 1)

    def step(self) -> dict[str, float]:
        """Return the seconds of each phase of one batch, evaluations left out."""
        size, config, rates = self.size, self.config, self.rates
        machines, world = self.machines, self.machines.world
        per_token = update_flops(size.n_multiplied, config)
        per_token += 2 * size.n_multiplied * recomputed(size, config)
        trained = trained_and_frozen(size)[0] * model_copies(world, config.fsdp_size) / world
        moved = 24 * trained / rates["host_link"] if config.offload_optimizer else 0.0
        # AdamW reads and writes weights, gradients and moments; copies measure the change.
        adamw = moved + 50 * trained / rates["bandwidth"]
        tokens = config.batch_size * config.n_samples * (self.mean_tokens + PROMPT_TOKENS)
        tokens *= 1 + rule_of(config).trains_second
        sampling = self.sampling(config.batch_size * config.n_votes)
        n_steps = -(-config.batch_size // config.mini_batch)
        network = {"network": self.between_nodes(tokens / n_steps) * n_steps}
        return {
            "rollout": sampling,
            **({"further": sampling} if SECOND_VOTES & rule_of(config).needs else {}),
            "update": tokens / world * per_token / rates["train_flops"],
            "optimizer": n_steps * adamw,
            "sync": 0.0 if config.engine_kind.native else 2 * size.n_weights / rates["hand_over"],
            **(network if machines.nodes > 1 else {}),
        }

    def seconds(self) -> float:
        """Return the seconds of a step, in which sampling ahead hides a part of the update."""
        phases = self.step()
        if not self.config.async_level:
            return sum(phases.values())
        trained = phases["update"] + phases["optimizer"]
        return sum(phases.values()) - self.rates["overlap"] * min(phases["rollout"], trained)

    def between_nodes(self, tokens: float) -> float:
        """Return the seconds in which one optimizer step's traffic passes between machines.

        Rings are assumed that enter and leave every machine once, and no overlap. One copy over all
        ranks is gathered twice in every pass, and its gradients are scattered.
        """
        (trained, frozen), config = trained_and_frozen(self.size), self.config
        machines = self.machines
        copies = model_copies(machines.world, config.fsdp_size)
        passes = math.ceil(tokens / machines.world / config.max_tokens_per_microbatch)
        gradients = WIDE * trained * passes
        if copies % machines.nodes == 0:
            n_bytes = 2 * (1 - 1 / copies) * gradients
        else:
            n_bytes = gradients + 2 * width(config) * passes * (trained + frozen)
        return n_bytes / (machines.network * 1e9 / 8)

    def sampling(self, n_responses: int) -> float:
        """Return the seconds in which all engines together sample some responses."""
        size, config, rates = self.size, self.config, self.rates
        group, mean = config.engine_tp, self.mean_tokens
        # Each step of decoding reads the weights; each token reads the cache before it.
        rows = -(-n_responses * group // self.machines.world)
        before = PROMPT_TOKENS + mean / 2
        waves = max(1.0, rows / max(1.0, self.plan.cache_tokens / before))
        steps = (config.max_response_tokens or 1) * waves
        seconds = steps * (self.plan.engine_weights / rates["bandwidth"] + rates["decode_overhead"])
        seconds += rows * mean * before * 2 * size.n_kv / (group * rates["bandwidth"])
        multiplied = rows * (mean + PROMPT_TOKENS) * 2 * size.n_multiplied
        seconds += multiplied / (group * rates["sample_flops"])
        return seconds * (rates["adapters"] if config.engine_adapters else 1.0)

    def whole_run(self, n_problems: int) -> str:
        """Return the responses and hours of a whole run, with its evaluations."""
        config, n_batches = self.config, -(-n_problems // self.config.batch_size)
        n_steps = config.epochs * n_batches
        every = config.eval_steps or config.eval_every * n_batches
        n_evaluations = (n_steps - 1) // every if every else 0  # that at the end is a full one
        # Second votes are as many as the first.
        first = n_problems * config.n_votes * (1 + bool(SECOND_VOTES & rule_of(config).needs))
        n_evaluated = n_problems + config.n_held_out
        full, evaluated = n_evaluated * config.n_votes, n_evaluated * config.eval_samples
        # All votes are drawn before training and in the evaluations at the start and the end.
        votes, others = config.epochs * first, first + 2 * full + n_evaluations * evaluated
        hours: list[float] = []
        for speed in (self, replace(self, pace=FAST), replace(self, pace=SLOW)):
            seconds = n_steps * speed.seconds() + speed.sampling(first) + 2 * speed.sampling(full)
            hours.append((seconds + n_evaluations * speed.sampling(evaluated)) / 3600)
        return (
            f"a run: {n_steps:,} steps, {votes:,} votes, {others:,} responses of evaluations and "
            f"before training ({others / (votes + others):.0%}); about {hours[0]:.0f} hours "
            f"({hours[1]:.0f} to {hours[2]:.0f})"
        )

    def sources(self) -> str:
        """Return where the rates come from."""
        given = self.measured
        left = [f"{n} {x[SLOW]:g} to {x[FAST]:g}" for n, x in ASSUMED.items() if n not in given]
        words = f"measured: {', '.join(f'{n} {x:.3g}' for n, x in given.items())}"
        words = words if given else "no speed was measured"
        return f"{words}; assumed: {', '.join(left)}" if left else words
