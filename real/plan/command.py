"""Plans as `guard-train plan` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from real.plan.advice import fitting_changes
from real.plan.memory import GIB, RESERVE, MemoryPlan, plan_memory
from real.plan.model_size import ModelSize, PlannedModel, read_config
from real.plan.seconds import ASSUMED, CARDS, Card, step_seconds
from real.settings.config import TrainConfig
from real.settings.machine import check_engine_tp, settled_for
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
        UserError: the model's config cannot be read, or `engine_tp` does not divide the GPUs.
    """
    config = settled_for(config, gpu=True, vllm=True)[0]
    check_engine_tp(config, machine.gpus)
    model = PlannedModel(read_config(config.model or str(starting_checkpoint(config.tiny_task))))
    world, card = machine.gpus, int(machine.memory * GIB)
    size = model.size(config.lora_rank, config.lora_targets)
    plan = plan_memory(model, config, world, card)
    lines = [_title(size, config, machine), *_table(plan), *_other_places(plan)]
    if plan.fits:
        phases = step_seconds(size, plan, config, world, machine.card, mean_tokens)
        times = ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in phases)
        total = sum(phase.seconds for phase in phases)
        lines += [f"fits; about {total:.0f} s a step without evaluations: {times}"]
        lines += [f"assumed: responses of {mean_tokens} tokens on average, {ASSUMED}"]
        return lines, True
    fitting = fitting_changes(model, config, world, card)
    return [*lines, "does not fit; these would: " + (" | ".join(fitting) or "none known")], False


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
