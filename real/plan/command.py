"""Plans as `guard-train plan` prints them, and as the trainer asks for them on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from real.model.policy import pick_device
from real.plan.advice import fitting_changes, require_fit
from real.plan.memory import GIB, RESERVE, MemoryPlan, plan_memory
from real.plan.model_size import ModelSize, PlannedModel, read_config
from real.plan.seconds import ASSUMED, CARDS, Card, step_seconds
from real.settings.config import TrainConfig
from real.tiny import starting_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs that a plan is for."""

    gpus: int
    """Ranks, each with an engine."""
    card: Card
    memory: float
    """GiB of each GPU."""


def machine_of(name: str, gpus: int, memory: float | None) -> Machine:
    """Return GPUs of a kind in `CARDS`, with another memory in GiB if one is given."""
    card = CARDS[name]
    return Machine(gpus=gpus, card=card, memory=memory or card.memory)


def plan_lines(config: TrainConfig, machine: Machine, mean_tokens: int) -> tuple[list[str], bool]:
    """Return a plan for readers, and whether the run fits.

    Args:
        config: of the run; its model is a folder, `hf:owner/name` or a preset's model.
        machine: the GPUs.
        mean_tokens: mean length of a response, for the estimate of the time.

    Raises:
        UserError: the model's config cannot be read.
    """
    config = config.settled()
    model = PlannedModel(read_config(config.model or str(starting_checkpoint(False))))
    world, card = machine.gpus, int(machine.memory * GIB)
    size = model.size(config.lora_rank, config.lora_targets)
    plan = plan_memory(model, config, world, card)
    lines = [_title(size, config, machine), *_table(plan), *_other_places(plan)]
    if plan.fits:
        phases = step_seconds(size, plan, config, world, machine.card, mean_tokens)
        told = ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in phases)
        total = sum(phase.seconds for phase in phases)
        lines += [f"fits; about {total:.0f} s a step without evaluations: {told}"]
        lines += [f"assumed: responses of {mean_tokens} tokens on average, {ASSUMED}"]
        return lines, True
    fitting = fitting_changes(model, config, world, card)
    return [*lines, "does not fit; these would: " + (" | ".join(fitting) or "none known")], False


def checked_engine_share(config: TrainConfig, folder: Path, world: int) -> float | None:
    """Check that a run fits on this machine's GPUs before anything is loaded.

    Args:
        config: settled settings.
        folder: of the model.
        world: ranks of the run.

    Returns:
        The share of the GPU that vLLM may take; None where the run is on a CPU.

    Raises:
        UserError: the run does not fit; the message names settings that would.
    """
    if pick_device(config.device).type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info()
    return engine_share(config, folder, world, free, total)


def engine_share(config: TrainConfig, folder: Path, world: int, free: int, total: int) -> float:
    """Return the share of a GPU that vLLM may take, 0 for other engines.

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
    shared = taken > RESERVE * total
    of = f"memory ({taken / GIB:.0f} GiB of the GPU are in use)" if shared else "memory"
    card = free if shared else total
    if config.engine_memory is not None:
        config = replace(config, engine_memory=min(1.0, config.engine_memory * total / card))
    plan = plan_memory(model, config, world, card)
    require_fit(plan, model, config, world, of)
    return plan.engine_share * card / total


def _title(size: ModelSize, config: TrainConfig, machine: Machine) -> str:
    what = f"adapters of {size.n_adapters / 1e6:.0f} M" if size.n_adapters else "all"
    gpus = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}"
    name = config.model or "tiny task"
    return (
        f"{name}: {size.n_weights / 1e9:.3g} billion weights, {what} trained, in {config.dtype}, "
        f"{config.engine}, {gpus} of {machine.memory:g} GiB"
    )


def _table(plan: MemoryPlan) -> Iterator[str]:
    yield f"{'GiB per GPU':<18} {'update':>8} {'sampling':>8}"
    for part in plan.parts:
        yield _row(part.name, part.update, part.sampling, part.note)
    note = f"of {plan.usable / GIB:.1f}, {RESERVE:.0%} of the GPU stay free"
    yield _row("sum", plan.update, plan.sampling, note)


def _row(name: str, update: int, sampling: int, note: str) -> str:
    return f"{name:<18} {update / GIB:>8.1f} {sampling / GIB:>8.1f}  {note}".rstrip()


def _other_places(plan: MemoryPlan) -> Iterator[str]:
    yield f"main memory: {plan.host / GIB:.0f} GiB on the machine, when the model is loaded"
    yield f"checkpoint: {plan.checkpoint / 1e9:.1f} GB on disk each"
