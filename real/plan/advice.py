"""Check that a run fits a GPU, and settings that would, each found by planning it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lab.errors import UserError
from real.engines.vllm_settings import EngineMemory
from real.model.policy import pick_device
from real.plan.memory import GIB, RESERVE, MemoryPlan, plan_memory
from real.plan.model_size import PlannedModel, read_config
from real.settings.config import TrainConfig

MOST_GPUS = 8
_SHOWN = 4


class _Change(NamedTuple):
    words: str
    settings: dict[str, Any]
    world: int | None = None


def checked_engine_memory(
    config: TrainConfig, folder: Path, world: int
) -> tuple[EngineMemory | None, list[str]]:
    """Check that a run fits on this machine's GPUs before anything is loaded.

    Args:
        config: settled settings.
        folder: of the model.
        world: ranks of the run.

    Returns:
        The memory of the GPU that vLLM may take, and a notice of the plan; neither on a CPU.

    Raises:
        UserError: the run does not fit; the message names settings that would.
    """
    if pick_device(config.device).type != "cuda":
        return None, []
    free, total = torch.cuda.mem_get_info()
    return engine_memory(config, folder, world, free, total)


def engine_memory(
    config: TrainConfig, folder: Path, world: int, free: int, total: int
) -> tuple[EngineMemory, list[str]]:
    """Return what vLLM may take of a GPU, and a notice of the plan.

    It is what the trainer leaves, or the share of the settings.

    Args:
        config: settled settings.
        folder: of the model.
        world: ranks of the run.
        free: bytes of the GPU that no process holds.
        total: bytes of the GPU.

    Raises:
        UserError: the run does not fit.
    """
    model, taken = PlannedModel(read_config(str(folder))), total - free
    asked = config.engine_memory is not None
    shared = taken > RESERVE * total
    of = f"memory ({taken / GIB:.0f} GiB of the GPU are in use)" if shared else "memory"
    card = free if shared else total
    if config.engine_memory is not None:
        config = replace(config, engine_memory=min(1.0, config.engine_memory * total / card))
    plan = plan_memory(model, config, world, card)
    require_fit(plan, model, config, world, of)
    memory = EngineMemory(plan.engine_share * card / total, None if asked else plan.cache or None)
    return memory, [_told(plan)]


def _told(plan: MemoryPlan) -> str:
    """Return a plan in one line; `guard-train plan` prints the whole table."""
    sums = f"update {plan.update / GIB:.0f}, sampling {plan.sampling / GIB:.0f}"
    parts = [(part.name, max(part.update, part.sampling) / GIB) for part in plan.parts]
    words = ", ".join(f"{name} {size:.2g}" for name, size in parts if size >= 0.05)
    return f"memory of each GPU in GiB: {sums} of {plan.usable / GIB:.0f} ({words})"


def require_fit(
    plan: MemoryPlan, model: PlannedModel, config: TrainConfig, world: int, of: str = "GPU"
) -> None:
    """Refuse a run that does not fit.

    Args:
        plan: of the run.
        model: that is trained.
        config: settled settings.
        world: GPUs.
        of: begins the message.

    Raises:
        UserError: names the settings that would fit.
    """
    if plan.fits:
        return
    update, sampling, usable = (n / GIB for n in (plan.update, plan.sampling, plan.usable))
    need = f"the update needs {update:.0f} GiB, sampling {sampling:.0f}"
    if plan.cache_tokens < plan.least_tokens:
        need += f" and {max(0, plan.cache_tokens)} tokens of cache are too few"
    fitting = fitting_changes(model, config, world, plan.card)
    remedy = "these would fit: " + " | ".join(fitting) if fitting else "take a smaller model"
    raise UserError(f"{of}: {need}, of {usable:.0f} GiB on each of {world}; {remedy}")


def fitting_changes(model: PlannedModel, config: TrainConfig, world: int, card: int) -> list[str]:
    """Return changes of the settings under which the run fits, smallest first, as options.

    Args:
        model: that is trained.
        config: settled settings.
        world: GPUs.
        card: bytes of each GPU.
    """
    changes = list(_changes(config, world))
    for together in (1, 2, 3):
        found = [
            " ".join(change.words for change in chosen)
            for chosen in combinations(changes, together)
            if _fits(model, config, world, card, chosen)
        ]
        if found:
            return found[:_SHOWN]
    return []


def _changes(config: TrainConfig, world: int) -> Iterator[_Change]:
    if config.engine_memory is not None and config.engine.startswith("vllm"):
        yield _Change("no --engine-memory", {"engine_memory": None})
    if config.ahead:
        yield _Change("--ahead 0", {"ahead": 0})
    if not config.gradient_checkpointing:
        yield _Change("--gradient-checkpointing", {"gradient_checkpointing": True})
    lower = config.micro_tokens // 4
    if lower >= 1024:
        yield _Change(f"--micro-tokens {lower}", {"micro_tokens": lower})
    if config.dtype == "float32":
        yield _Change("--dtype bfloat16", {"dtype": "bfloat16"})
    if config.engine == "transformers" and config.max_rows > 64:
        yield _Change("--max-rows 64", {"max_rows": 64})
    if not config.offload_optimizer:
        yield _Change("--offload-optimizer", {"offload_optimizer": True})
    if not config.lora_rank:
        yield _Change("--lora-rank 16", {"lora_rank": 16})
    more = [n for n in (2, 4, 8) if world < n <= MOST_GPUS]
    for n in more:
        yield _Change(f"{n} GPUs", {}, n)


def _fits(
    model: PlannedModel, config: TrainConfig, world: int, card: int, chosen: tuple[_Change, ...]
) -> bool:
    worlds = [change.world for change in chosen if change.world]
    if len(worlds) > 1:
        return False
    changed = replace(config, **{n: v for c in chosen for n, v in c.settings.items()})
    return plan_memory(model, changed, (worlds or [world])[0], card).fits
