"""Whether a run fits its GPUs, checked before anything is loaded; and `guard-train plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lab.base.errors import UserError
from real.engines.make import check_engine, check_heads
from real.engines.vllm_engine import EngineMemory
from real.model.machine import pick_device
from real.plan import GIB, RESERVE, MemoryPlan, PlannedModel, plan_memory, read_config
from real.problems.load import NAMED, n_trained
from real.settings.config import TrainConfig
from real.settings.engines import divides_heads
from real.settings.machines import Machines
from real.settings.resolve import check_engine_tp, settled_for
from real.speed import CARDS, FAST, SLOW, Speed
from real.tiny import model_of, problems_of


def checked_engine_memory(
    config: TrainConfig, folder: Path, world: int
) -> tuple[EngineMemory | None, list[str]]:
    """Check that a run fits on this machine's GPUs; returns vLLM's memory and a notice of the plan.

    A refusal names settings that would fit. On a CPU nothing is checked or returned.
    """
    if pick_device(config.device).type != "cuda":
        return None, []
    return engine_memory(config, folder, world, *torch.cuda.mem_get_info())


def engine_memory(
    config: TrainConfig, folder: Path, world: int, free: int, total: int
) -> tuple[EngineMemory, list[str]]:
    """Return what vLLM may take of a GPU with `free` of its `total` bytes, as above."""
    model, taken = PlannedModel(read_config(str(folder))), total - free
    shared = taken > RESERVE * total
    of = f"memory ({taken / GIB:.0f} GiB of the GPU are in use)" if shared else "memory"
    card = free if shared else total
    if (wanted := config.engine_memory) is not None:
        config = replace(config, engine_memory=min(1.0, wanted * total / card))
    plan = plan_memory(model.size(config), config, world, card)
    if not plan.fits:
        update, sampling, usable = (n / GIB for n in (plan.update, plan.sampling, plan.usable))
        need = f"the update needs {update:.0f} GiB, sampling {sampling:.0f}"
        if plan.start > plan.usable:
            need += f", loading {plan.start / GIB:.0f}"
        if plan.cache_tokens < plan.least_tokens:
            need += f" and {max(0, plan.cache_tokens)} tokens of cache are too few"
        need += f", of {usable:.0f} GiB on each of {world}"
        raise UserError(f"{of}: {need}; {remedy(model, config, world, card)}")
    memory = EngineMemory(plan.engine_share * card / total, None if wanted else plan.cache or None)
    sums = f"update {plan.update / GIB:.0f}, sampling {plan.sampling / GIB:.0f}"
    parts = [(part.name, max(part.update, part.sampling) / GIB) for part in plan.parts]
    words = ", ".join(f"{name} {size:.2g}" for name, size in parts if size >= 0.05)
    return memory, [f"memory of each GPU in GiB: {sums} of {plan.usable / GIB:.0f} ({words})"]


def remedy(model: PlannedModel, config: TrainConfig, world: int, card: int) -> str:
    """Return the single changes of the settings under which a run fits GPUs of `card` bytes."""
    fewer = config.max_tokens_per_microbatch // 4
    changes: dict[str, dict[str, Any]] = {
        "no --engine-memory": {"engine_memory": None},
        "--async-level 0": {"async_level": 0},
        "--kept-layers 0": {"kept_layers": 0},
        "--gradient-checkpointing": {"gradient_checkpointing": True},
        f"--max-tokens-per-microbatch {fewer}": {"max_tokens_per_microbatch": fewer},
        "--max-rows 64": {"max_rows": min(64, config.max_rows)},
        "--offload-optimizer": {"offload_optimizer": True},
        "--lora-rank 16": {"lora_rank": config.lora_rank or 16},
    }

    def fits(world: int, **changed: Any) -> bool:
        try:
            other = replace(config, **changed)
            check_engine(other, world)
            check_engine_tp(other, world)
            return plan_memory(model.size(other), other, world, card).fits
        except UserError:  # the trainer would refuse it
            return False

    fitting = [words for words, changed in changes.items() if fits(world, **changed)]
    fitting += [f"{n} GPUs" for n in (2, 4, 8) if n > world and fits(n)][:1]
    if not fitting:
        return "no single change would fit; combine --offload-optimizer, --lora-rank and more GPUs"
    return "these would fit: " + " | ".join(fitting)


def plan_lines(
    config: TrainConfig, machines: Machines, measured: Mapping[str, float]
) -> tuple[list[str], bool]:
    """Return a plan for readers, and whether the run fits; `measured` as `Speed` has it."""
    config, gpus = settled_for(config, "cuda", vllm=True)[0], machines.world
    check_engine_tp(config, machines.gpus)
    check_engine(config, gpus)
    model = PlannedModel(read_config(config.own_model or str(model_of(config))))
    size, memory = model.size(config), machines.gpu_memory or CARDS[machines.gpu].memory
    check_heads(config, size.n_heads, size.n_kv_heads)
    card = int(memory * GIB)
    plan = plan_memory(size, config, gpus, card, machines.nodes)
    what = f"adapters of {size.n_adapters / 1e6:.0f} M" if size.n_adapters else "all"
    title = (
        f"{config.model or 'tiny task'}: {size.n_weights / 1e9:.3g} billion weights, {what} "
        f"trained, in {config.dtype}, {config.engine}, {gpus} GPU{'s' * (gpus > 1)} of "
        f"{memory:g} GiB"
    )
    lines = [title, *_table(plan)]
    if not plan.fits:
        return [*lines, f"does not fit; {remedy(model, config, gpus, card)}"], False
    speed = Speed(size, plan, config, machines, measured)
    times = ", ".join(f"{phase} {value:.1f}" for phase, value in speed.step().items())
    span = " to ".join(f"{replace(speed, pace=pace).seconds():.0f}" for pace in (FAST, SLOW))
    lines += [f"fits; about {speed.seconds():.0f} s a step ({span}) without evaluations: {times}"]
    if others := ", ".join(_others(speed, card)):
        lines.append(f"seconds a step with: {others}")
    source, n_problems = config.problems or "", config.n_problems
    if source in NAMED:
        n_problems = n_trained(config, NAMED[source].n_problems)
    elif Path(source).is_file():
        n_problems = len(problems_of(config))
    if n_problems:  # else no file is here to tell
        lines.append(speed.whole_run(n_problems))
    return [*lines, speed.sources()], True


def _others(speed: Speed, card: int) -> Iterator[str]:
    """Yield single settings that fit and change the speed, with the seconds of a step."""
    config, size, machines = speed.config, speed.size, speed.machines
    changes: dict[str, dict[str, Any]] = {}
    if config.engine_kind.splits:
        heads = size.n_heads, size.n_kv_heads
        tp = (n for n in (1, 2, 4) if machines.gpus % n == 0 and divides_heads(n, *heads))
        changes |= {f"--engine-tp {n}": {"engine_tp": n} for n in tp}
    if config.scores_anew(config.tis_cap) and not config.scores_anew(0.0):
        changes["--tis-cap 0"] = {"tis_cap": 0.0}
    if config.engine_kind.shares_gpu and config.tis_cap:
        changes["--engine-quantization fp8"] = {"engine_quantization": "fp8"}
    if config.gradient_checkpointing:
        counts = range(size.n_layers, config.kept_layers, -1)
        changes |= {f"--kept-layers {n}": {"kept_layers": n} for n in counts}
    for words, changed in changes.items():
        other = replace(config, **changed)
        plan = plan_memory(size, other, machines.world, card, machines.nodes)
        if other != config and plan.fits:
            yield f"{words} {replace(speed, config=other, plan=plan).seconds():.0f}"
            if "kept_layers" in changed:
                return  # the most that fit


def _table(plan: MemoryPlan) -> Iterator[str]:
    yield f"{'GiB per GPU':<18} {'update':>8} {'sampling':>8}"
    note = f"of {plan.usable / GIB:.1f}, {RESERVE:.0%} of the GPU stay free"
    for name, update, sampling, said in (*plan.parts, ("sum", plan.update, plan.sampling, note)):
        yield f"{name:<18} {update / GIB:>8.1f} {sampling / GIB:>8.1f}  {said}".rstrip()
    yield f"main memory: {plan.host / GIB:.0f} GiB on each machine, when the model is loaded"
    yield f"checkpoint: {plan.checkpoint / 1e9:.1f} GB on disk each"
