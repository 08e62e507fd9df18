"""A cell of the paper as a shell script for verl, from the presets of the trainer."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from guard_core import GuardConfig
from guard_core.checks import Count, Natural, Positive, check_fields
from lab.errors import UserError
from lab.settings import to_values
from lab.trace.parts import check_new
from real.problems import NAMED
from real.settings.config import TrainConfig
from real.settings.options import settings_of
from real.settings.presets import model_of
from real.verl.settings import LOSSES, TEMPLATE, check_plugin


@dataclass(kw_only=True)
class Cell:
    """One of the paper's cells on the GPUs of a Ray cluster."""

    preset: str
    """One of the paper's cells, such as qwen2.5-7b/math500; see `guard-train presets`."""
    arm: str = "guard"
    """Arm of the comparison: ttrl, guard, frozen, memory, truth, ..."""
    step_factor: Positive | None = None
    """Factor on the learning rate; that of the arm at matched effort is found by
    `guard-train compare`."""
    nodes: Count = 1
    gpus: Count = 8
    """GPUs of each node."""
    gpu_memory: Positive = 80.0
    """GiB of each GPU."""
    model: str | None = None
    """Folder of the model, on a disk that all nodes see."""
    problems: str | None = None
    """Parquet file of `guard-verl problems`, on such a disk; named after the set if None."""
    out: str = "runs/verl"
    """Run folder, on such a disk."""
    seed: Natural = 0
    """Of the votes, of the guard and of the problems' order."""

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self, error=UserError)


def cell_script(cell: Cell) -> str:
    """Return a script that reproduces a cell of the paper on verl.

    Raises:
        UserError: there is no such preset, no such arm on verl, so many GPUs cannot share its
            mini-batch, or the run folder exists without a checkpoint to go on from.
    """
    from real.plan.cluster import spread  # imports torch
    from real.plan.model_size import PlannedModel, read_config

    factor = [] if cell.step_factor is None else ["--step-factor", str(cell.step_factor)]
    options = ["--preset", cell.preset, "--arm", cell.arm, *factor]
    config = replace(settings_of(options, with_model=True), step_factor=cell.step_factor or 1.0)
    check_plugin(config)
    out = Path(os.path.abspath(cell.out))
    if not (out / "checkpoints" / "latest_checkpointed_iteration.txt").exists():
        check_new(out)
    model, data = model_of(cell.preset), config.problems or ""
    planned, rows = PlannedModel(read_config(model)), config.mini_batch * config.n_samples
    n_batches, left_out = divmod(NAMED[data].n_problems, config.batch_size)
    values: dict[str, Any] = {
        **asdict(cell),
        **to_values(config),
        **spread(planned, rows, cell.nodes, cell.gpus, cell.gpu_memory * 2**30)._asdict(),
        "rows": rows,
        "seed": cell.seed,
        "model": cell.model or f"path/to/{model}",
        "model_name": model,
        "problem_file": os.path.abspath(cell.problems or f"{data}.parquet"),
        "out": out,
        "checkpoints": out / "checkpoints",
        "loss": LOSSES[config.loss],
        "uses_kl": config.kl_coef > 0,
        "n_batches": n_batches,
        "left_out": left_out,
    }
    shown = {name: shlex.quote(_written(value)) for name, value in values.items()}
    shown["guard"] = "\n  ".join(f"+guard.{name}={_written(v)}" for name, v in _guard(config))
    shown["address"] = "RAY_ADDRESS=auto " if cell.nodes > 1 else ""
    return TEMPLATE.format_map(shown)


def _guard(config: TrainConfig) -> list[tuple[str, Any]]:
    """Return the profile closest to the run's guard, what differs from it, and other settings."""
    wanted, usual = config.guard.to_dict().items(), TrainConfig()
    guards = (
        [("profile", name), *sorted(wanted - GuardConfig.profile(name).to_dict().items())]
        for name in ("paper", "release", "off", "recommended")
    )
    others = ((name, getattr(config, name)) for name in ("labels", "rule", "step_factor"))
    return min(guards, key=len) + [(n, v) for n, v in others if v != getattr(usual, n)]


def _written(value: Any) -> str:
    """Return a value in Hydra's grammar of overrides."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    quoted = "'" + text.replace("'", "\\'") + "'"
    return text if re.fullmatch(r"[\w/.:@+-]+", text) else quoted
