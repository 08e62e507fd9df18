"""Check that a run fits its GPUs, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lab.errors import UserError
from real.engines.vllm_settings import EngineMemory
from real.model.policy import pick_device
from real.plan.memory import GIB, RESERVE, MemoryPlan, plan_memory
from real.plan.sizes import PlannedModel, read_config
from real.settings.config import TrainConfig


def checked_engine_memory(
    config: TrainConfig, folder: Path, world: int
) -> tuple[EngineMemory | None, list[str]]:
    """Check that a run fits on this machine's GPUs before anything is loaded.

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
    """Return what vLLM may take of a GPU with `free` of its `total` bytes, as above."""
    model, taken = PlannedModel(read_config(str(folder))), total - free
    asked = config.engine_memory is not None
    shared = taken > RESERVE * total
    of = f"memory ({taken / GIB:.0f} GiB of the GPU are in use)" if shared else "memory"
    card = free if shared else total
    if config.engine_memory is not None:
        config = replace(config, engine_memory=min(1.0, config.engine_memory * total / card))
    plan = plan_memory(model.size(config.lora_rank, config.lora_targets), config, world, card)
    if not plan.fits:
        raise UserError(f"{of}: {_lacks(plan, world)}; {remedy(model, config, world, card)}")
    memory = EngineMemory(plan.engine_share * card / total, None if asked else plan.cache or None)
    return memory, [_told(plan)]


def _told(plan: MemoryPlan) -> str:
    """Return a plan in one line; `guard-train plan` prints the whole table."""
    sums = f"update {plan.update / GIB:.0f}, sampling {plan.sampling / GIB:.0f}"
    parts = [(part.name, max(part.update, part.sampling) / GIB) for part in plan.parts]
    words = ", ".join(f"{name} {size:.2g}" for name, size in parts if size >= 0.05)
    return f"memory of each GPU in GiB: {sums} of {plan.usable / GIB:.0f} ({words})"


def _lacks(plan: MemoryPlan, world: int) -> str:
    update, sampling, usable = (n / GIB for n in (plan.update, plan.sampling, plan.usable))
    need = f"the update needs {update:.0f} GiB, sampling {sampling:.0f}"
    if plan.cache_tokens < plan.least_tokens:
        need += f" and {max(0, plan.cache_tokens)} tokens of cache are too few"
    return f"{need}, of {usable:.0f} GiB on each of {world}"


def remedy(model: PlannedModel, config: TrainConfig, world: int, card: int) -> str:
    """Return the single changes of the settings under which a run fits GPUs of `card` bytes."""
    changes: dict[str, dict[str, Any]] = {
        "no --engine-memory": {"engine_memory": None},
        "--ahead 0": {"ahead": 0},
        "--gradient-checkpointing": {"gradient_checkpointing": True},
        f"--micro-tokens {config.micro_tokens // 4}": {"micro_tokens": config.micro_tokens // 4},
        "--max-rows 64": {"max_rows": min(64, config.max_rows)},
        "--offload-optimizer": {"offload_optimizer": True},
        "--lora-rank 16": {"lora_rank": config.lora_rank or 16},
    }

    def fits(world: int, **changed: Any) -> bool:
        other = replace(config, **changed)
        size = model.size(other.lora_rank, other.lora_targets)
        return plan_memory(size, other, world, card).fits

    fitting = [words for words, changed in changes.items() if fits(world, **changed)]
    fitting += [f"{n} GPUs" for n in (2, 4, 8) if n > world and fits(n)][:1]
    if not fitting:
        return "no single change would fit; combine --offload-optimizer, --lora-rank and more GPUs"
    return "these would fit: " + " | ".join(fitting)
