"""What a run leaves: the run folder, and the guard's part of verl's checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from lab.arm_settings import arm_of
from lab.arms import title
from lab.errors import UserError
from lab.files import whole
from lab.settings import to_values
from lab.trace.lock import locked
from lab.trace.manifest import Manifest
from lab.trace.provenance import commit, now
from lab.trace.store import RunFolder
from real.record.stored import check_same
from real.settings.config import TrainConfig
from real.verl.plugin.votes import Problems

FOLDER = "guard"
"""Of a checkpoint of verl."""
GUARD, ANSWERS, PLACE = "guard.safetensors", "answers.json", "place.json"
_MEASURED = {
    "lr": "actor/lr",
    "update_norm": "actor/update_norm",
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "entropy": "actor/entropy",
    "mismatch_kl": "rollout_corr/kl",
}
"""Columns of the trace's steps to verl's metrics."""
_SECONDS = {"rollout": "gen", "grade": "grade", "guard": "guard", "update": "update_actor"}
"""Columns `seconds_*` to verl's timers."""


def new_manifest(settings: TrainConfig, n_problems: int, task: str, backend: str) -> Manifest:
    """Return the run's `run.json`, as that of a run of the trainer."""
    arm = arm_of(settings).name
    return Manifest.new(
        "real",
        arm,
        title(arm),
        n_problems=n_problems,
        n_votes=settings.n_votes,
        config=to_values(settings),
        seeds=[settings.seed],
        task=task,
        backend=backend,
        extra={"step_factor": settings.step_factor, "notices": []},
    )


@contextlib.contextmanager
def opened(path: Path, manifest: Manifest, saved: dict[str, Any] | None) -> Iterator[RunFolder]:
    """Make the run folder, or go on with it where a checkpoint left it.

    Args:
        path: of the folder.
        manifest: of a new run.
        saved: what `load` returned; None for a new run.

    Raises:
        UserError: the folder exists; or it lacks what a resumed run wrote before.
    """
    if saved is None:
        made = RunFolder.create(path, manifest)
        with locked(path), made:
            yield made
        return
    with locked(path):
        folder = RunFolder.reopen(path, saved["parts"])
        resumed = [*folder.manifest.extra.get("resumed", []), {"at": now(), "commit": commit()}]
        folder.manifest.extra = {**saved["extra"], "resumed": resumed}
        with folder:
            yield folder


def save(checkpoint: Path, problems: Problems, run: RunFolder) -> None:
    """Write the guard's part of a checkpoint, before verl names that its latest.

    Raises:
        UserError: the disk cannot be written.
    """
    folder = checkpoint / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    supervisor = problems.supervisor
    place = {
        **problems.state(),
        "parts": run.parts(),
        "config": to_values(supervisor.config),
        "extra": run.manifest.extra,
    }
    with whole(folder / GUARD) as file:
        save_file({n: np.ascontiguousarray(a) for n, a in supervisor.arrays().items()}, file)
    for name, values in ((ANSWERS, supervisor.answer_ids.to_values()), (PLACE, place)):
        with whole(folder / name) as file:
            file.write_bytes(msgspec.json.encode(values))


def load(checkpoint: Path, problems: Problems) -> dict[str, Any]:
    """Put the guard where it was at a checkpoint; returns what `opened` goes on from.

    Raises:
        UserError: the checkpoint has no guard, or settings or problems differ.
    """
    folder = checkpoint / FOLDER
    if not (folder / PLACE).is_file():
        raise UserError(
            f"{folder}: missing; the checkpoint is none of trainer_mode=ttrl_guard, so start "
            "from its model instead, with another trainer.default_local_dir"
        )
    saved = msgspec.json.decode((folder / PLACE).read_bytes())
    check_same(saved["config"], problems.supervisor.config, folder)
    answers = msgspec.json.decode((folder / ANSWERS).read_bytes())
    problems.restore(saved, load_file(folder / GUARD), answers)
    return saved


def measured(
    metrics: Mapping[str, Any], timers: Mapping[str, float], seconds: float
) -> dict[str, float]:
    """Return the columns of a step that verl measures; NaN where it did not.

    Args:
        metrics: of verl's step.
        timers: seconds by the name of verl's timer.
        seconds: of the whole step.
    """
    row = {name: float(metrics.get(key, np.nan)) for name, key in _MEASURED.items()}
    times = {f"seconds_{name}": timers.get(key, np.nan) for name, key in _SECONDS.items()}
    return {**row, **times, "seconds_step": seconds}


def evaluated(scores: NDArray[np.float64], n_problems: int) -> dict[str, float]:
    """Return the columns of an evaluation by verl; pass@1 only of scores from 0 to 1.

    Args:
        scores: of all responses.
        n_problems: that were evaluated.
    """
    is_share = scores.size and scores.min() >= 0 and scores.max() <= 1
    return {
        "replicate": 0,
        "pass_at_1": float(scores.mean()) if is_share else np.nan,
        "maj_accuracy": np.nan,
        "n_responses": len(scores) / max(1, n_problems),
    }
