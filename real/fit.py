"""Whether a run fits its GPUs, checked before anything is loaded; and `guard-train plan`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lab.base.errors import UserError
from real.engines.vllm_engine import EngineMemory
from real.model.machine import pick_device
from real.plan import (
    CARDS,
    GIB,
    RESERVE,
    Card,
    MemoryPlan,
    ModelSize,
    PlannedModel,
    plan_memory,
    read_config,
    trained_and_frozen,
    update_flops,
    widths,
)
from real.problems.load import NAMED
from real.ranks import model_copies
from real.settings.config import TrainConfig
from real.settings.presets import check_engine_tp, settled_for
from real.tiny import model_of

PEAK_SHARE = 0.4
"""Share of the peak speed that matrix products reach. Assumed, not measured, as those below."""
BANDWIDTH_SHARE = 0.7
"""Share of the memory's speed that decoding reaches."""
DECODE_OVERHEAD = 0.003
"""Seconds per decoded token besides reading weights and cache."""
HOST_LINK = 50e9
"""Bytes per second between a GPU and main memory, in one direction at a time."""
HAND_OVER = 20e9
"""Bytes of weights per second from the trainer to an engine."""
PROMPT_TOKENS = 150


@dataclass(frozen=True, slots=True)
class Speed:
    """Estimated seconds of a run's phases, from data sheets."""

    size: ModelSize
    plan: MemoryPlan
    config: TrainConfig
    world: int
    """GPUs, each with a rank and a share of an engine."""
    card: Card
    mean: int
    """Mean length of a response in tokens, of which one in a batch reaches the limit."""
    nodes: int = 1
    """Machines, each with as many GPUs."""
    network: float = 400.0
    """10^9 bits per second that a machine sends to others, over all its links."""

    def step(self) -> dict[str, float]:
        """Return the seconds of each phase of one batch, evaluations left out."""
        size, config, world, card = self.size, self.config, self.world, self.card
        per_token = update_flops(size.n_multiplied, config)
        per_token += 2 * config.gradient_checkpointing * size.n_multiplied
        trained = trained_and_frozen(size)[0] * model_copies(world, config.fsdp_size) / world
        moved = 24 * trained / HOST_LINK if config.offload_optimizer else 0.0
        # AdamW reads and writes weights, gradients and moments; copies measure the change.
        adamw = moved + 50 * trained / (card.bandwidth * BANDWIDTH_SHARE)
        tokens = config.batch_size * config.n_samples * (self.mean + PROMPT_TOKENS)
        n_steps = -(-config.batch_size // config.mini_batch)
        network = {"network": self.between_nodes(tokens / n_steps) * n_steps}
        return {
            "rollout": self.sampling(config.batch_size * config.n_votes),
            "update": tokens / world * per_token / (card.flops * PEAK_SHARE),
            "optimizer": n_steps * adamw,
            "sync": 0.0 if config.engine_kind.native else 2 * size.n_weights / HAND_OVER,
            **(network if self.nodes > 1 else {}),
        }

    def between_nodes(self, tokens: float) -> float:
        """Return the seconds in which one optimizer step's traffic passes between machines.

        Rings are assumed that enter and leave every machine once, and no overlap. One copy of the
        model over all ranks is gathered twice and its gradients are scattered in every pass;
        groups within a machine only add their gradients up.
        """
        (trained, frozen), config = trained_and_frozen(self.size), self.config
        copies = model_copies(self.world, config.fsdp_size)
        passes = math.ceil(tokens / self.world / config.max_tokens_per_microbatch)
        narrow, wide = widths(config)
        gradients = wide * trained * passes
        if copies % self.nodes == 0:
            n_bytes = 2 * (1 - 1 / copies) * gradients
        else:
            n_bytes = gradients + 2 * narrow * passes * (trained + frozen)
        return n_bytes / (self.network * 1e9 / 8)

    def sampling(self, n_responses: int) -> float:
        """Return the seconds in which all engines together sample some responses."""
        size, config, group = self.size, self.config, self.config.engine_tp
        flops, bandwidth = self.card.flops * PEAK_SHARE, self.card.bandwidth * BANDWIDTH_SHARE
        # Each step of decoding reads the weights; each token reads the cache before it.
        rows = -(-n_responses * group // self.world)
        before = PROMPT_TOKENS + self.mean / 2
        waves = max(1.0, rows / max(1.0, self.plan.cache_tokens / before))
        steps = (config.max_response_tokens or 1) * waves
        seconds = steps * (2 * size.n_weights / (group * bandwidth) + DECODE_OVERHEAD)
        seconds += rows * self.mean * before * 2 * size.n_kv / (group * bandwidth)
        multiplied = rows * (self.mean + PROMPT_TOKENS) * 2 * size.n_multiplied
        return seconds + multiplied / (group * flops)

    def whole_run(self, n_problems: int) -> str:
        """Return the responses and hours of a whole run, with its evaluations."""
        config, n_batches = self.config, -(-n_problems // self.config.batch_size)
        n_steps = config.epochs * n_batches
        every = config.eval_steps or config.eval_every * n_batches
        n_evaluations = n_steps // every if every else 0
        votes, full = (n * n_problems * config.n_votes for n in (config.epochs, 1))
        evaluated = n_problems * config.eval_samples
        # All votes are drawn before training and in the evaluations at the start and the end.
        seconds = n_steps * sum(self.step().values()) + 3 * self.sampling(full)
        seconds += n_evaluations * self.sampling(evaluated)
        others = 3 * full + n_evaluations * evaluated
        return (
            f"a run: {n_steps:,} steps, {votes:,} votes, {others:,} responses of evaluations and "
            f"before training ({others / (votes + others):.0%}); about {seconds / 3600:.0f} hours"
        )


def checked_engine_memory(
    config: TrainConfig, folder: Path, world: int
) -> tuple[EngineMemory | None, list[str]]:
    """Check that a run fits on this machine's GPUs; returns vLLM's memory and a notice of the plan.

    A refusal names settings that would fit. On a CPU nothing is checked or returned.
    """
    if pick_device(config.device).type != "cuda":
        return None, []
    free, total = torch.cuda.mem_get_info()
    return engine_memory(config, folder, world, free, total)


def engine_memory(
    config: TrainConfig, folder: Path, world: int, free: int, total: int
) -> tuple[EngineMemory, list[str]]:
    """Return what vLLM may take of a GPU with `free` of its `total` bytes, as above."""
    model, taken = PlannedModel(read_config(str(folder))), total - free
    shared = taken > RESERVE * total
    of = f"memory ({taken / GIB:.0f} GiB of the GPU are in use)" if shared else "memory"
    card = free if shared else total
    if (asked := config.engine_memory) is not None:
        config = replace(config, engine_memory=min(1.0, asked * total / card))
    plan = plan_memory(model.size(config), config, world, card)
    if not plan.fits:
        raise UserError(f"{of}: {_lacks(plan, world)}; {remedy(model, config, world, card)}")
    memory = EngineMemory(plan.engine_share * card / total, None if asked else plan.cache or None)
    return memory, [_told(plan)]


def _told(plan: MemoryPlan) -> str:
    sums = f"update {plan.update / GIB:.0f}, sampling {plan.sampling / GIB:.0f}"
    parts = [(part.name, max(part.update, part.sampling) / GIB) for part in plan.parts]
    words = ", ".join(f"{name} {size:.2g}" for name, size in parts if size >= 0.05)
    return f"memory of each GPU in GiB: {sums} of {plan.usable / GIB:.0f} ({words})"


def _lacks(plan: MemoryPlan, world: int) -> str:
    update, sampling, usable = (n / GIB for n in (plan.update, plan.sampling, plan.usable))
    need = f"the update needs {update:.0f} GiB, sampling {sampling:.0f}"
    if plan.start > plan.usable:
        need += f", loading {plan.start / GIB:.0f}"
    if plan.cache_tokens < plan.least_tokens:
        need += f" and {max(0, plan.cache_tokens)} tokens of cache are too few"
    return f"{need}, of {usable:.0f} GiB on each of {world}"


def remedy(model: PlannedModel, config: TrainConfig, world: int, card: int) -> str:
    """Return the single changes of the settings under which a run fits GPUs of `card` bytes."""
    fewer = config.max_tokens_per_microbatch // 4
    changes: dict[str, dict[str, Any]] = {
        "no --engine-memory": {"engine_memory": None},
        "--async-level 0": {"async_level": 0},
        "--gradient-checkpointing": {"gradient_checkpointing": True},
        f"--max-tokens-per-microbatch {fewer}": {"max_tokens_per_microbatch": fewer},
        "--max-rows 64": {"max_rows": min(64, config.max_rows)},
        "--offload-optimizer": {"offload_optimizer": True},
        "--lora-rank 16": {"lora_rank": config.lora_rank or 16},
    }

    def fits(world: int, **changed: Any) -> bool:
        other = replace(config, **changed)
        return plan_memory(model.size(other), other, world, card).fits

    fitting = [words for words, changed in changes.items() if fits(world, **changed)]
    fitting += [f"{n} GPUs" for n in (2, 4, 8) if n > world and fits(n)][:1]
    if not fitting:
        return "no single change would fit; combine --offload-optimizer, --lora-rank and more GPUs"
    return "these would fit: " + " | ".join(fitting)


def plan_lines(
    config: TrainConfig,
    kind: str,
    gpus: int,
    memory: float | None,
    mean_tokens: int,
    nodes: int = 1,
    network: float = 400.0,
) -> tuple[list[str], bool]:
    """Return a plan for readers, and whether the run fits `gpus` of all `nodes` together."""
    config = settled_for(config, "cuda", vllm=True)[0]
    check_engine_tp(config, gpus)
    model = PlannedModel(read_config(config.own_model or str(model_of(config))))
    size, memory = model.size(config), memory or CARDS[kind].memory
    card = int(memory * GIB)
    plan = plan_memory(size, config, gpus, card, nodes)
    what = f"adapters of {size.n_adapters / 1e6:.0f} M" if size.n_adapters else "all"
    title = (
        f"{config.model or 'tiny task'}: {size.n_weights / 1e9:.3g} billion weights, {what} "
        f"trained, in {config.dtype}, {config.engine}, {gpus} GPU{'s' * (gpus > 1)} of "
        f"{memory:g} GiB"
    )
    lines = [title, *_table(plan)]
    if not plan.fits:
        return [*lines, f"does not fit; {remedy(model, config, gpus, card)}"], False
    speed = Speed(size, plan, config, gpus, CARDS[kind], mean_tokens, nodes, network)
    seconds = speed.step()
    times = ", ".join(f"{phase} {value:.1f}" for phase, value in seconds.items())
    total = sum(seconds.values())
    lines += [f"fits; about {total:.0f} s a step without evaluations: {times}"]
    if config.engine_kind.splits and gpus > 1:
        lines.append(f"seconds a step by --engine-tp: {', '.join(_by_engine_tp(speed, card))}")
    named = NAMED.get(config.problems or "")
    if n_problems := named.n_problems if named else config.n_problems:
        lines.append(speed.whole_run(n_problems))
    return [*lines, "estimated from data sheets; no speed was measured"], True


def _by_engine_tp(speed: Speed, card: int) -> Iterator[str]:
    for n in (1, 2, 4):
        config = replace(speed.config, engine_tp=n)
        plan = plan_memory(speed.size, config, speed.world, card)
        if speed.world % n == 0 and speed.size.n_heads % n == 0 and plan.fits:
            yield f"{n}: {sum(replace(speed, config=config, plan=plan).step().values()):.0f}"


def _table(plan: MemoryPlan) -> Iterator[str]:
    yield f"{'GiB per GPU':<18} {'update':>8} {'sampling':>8}"
    note = f"of {plan.usable / GIB:.1f}, {RESERVE:.0%} of the GPU stay free"
    for part in (*plan.parts, ("sum", plan.update, plan.sampling, note)):
        name, update, sampling, said = part
        yield f"{name:<18} {update / GIB:>8.1f} {sampling / GIB:>8.1f}  {said}".rstrip()
    yield f"main memory: {plan.host / GIB:.0f} GiB on each machine, when the model is loaded"
    yield f"checkpoint: {plan.checkpoint / 1e9:.1f} GB on disk each"
