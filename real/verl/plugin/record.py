"""The run folder of a run of verl, and the guard's part of verl's checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from lab.base.errors import UserError
from lab.trace.manifest import Manifest, read_manifest
from lab.trace.parts import locked
from lab.trace.store import RunFolder
from real.record.checkpoint import Checkpoint, read_checkpoint, read_file
from real.record.resuming import cut_back
from real.record.stored import check_same
from real.settings.config import TrainConfig
from real.verl.plugin.votes import Problems

FOLDER = "guard"
"""Of a checkpoint of verl."""
_STARTED = "started"
"""Fact of a run, by which its checkpoints know its folder."""
_STEPS = {
    "lr": "actor/lr",
    "update_norm": "actor/update_norm",
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "entropy": "actor/entropy",
    "mismatch_kl": "rollout_corr/kl",
    "seconds_rollout": "gen",
    "seconds_grade": "grade",
    "seconds_guard": "guard",
    "seconds_update": "update_actor",
    "seconds_step": "guarded_step",
}
"""Columns of the trace's steps, and the metric or timer of verl that measures them."""


@contextlib.contextmanager
def opened(
    path: Path, manifest: Manifest, config: TrainConfig, saved: Checkpoint | None
) -> Iterator[RunFolder]:
    """Make the run folder, or go on with it where a checkpoint left it.

    Args:
        saved: what `load` returned; None for a new run.

    Raises:
        UserError: the folder exists; or it is another run's than the checkpoint, or lacks what a
            resumed run wrote before.
    """
    if saved is None:
        manifest.extra[_STARTED] = manifest.started
    elif saved.extra.get(_STARTED) != read_manifest(path).started:
        raise UserError(
            f"{path}: not the run of the checkpoint; set +guard.out to that run's folder"
        )
    new = None if saved else RunFolder.create(path, manifest)
    with locked(path), new or cut_back(path, saved, config) as folder:
        yield folder


def resumed_from(trainer: Any) -> Path | None:
    """Return the checkpoint that verl goes on from; None for a new run.

    Args:
        trainer: verl's settings of that name.
    """
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path)
    found = trainer.resume_mode == "auto" and find_latest_ckpt_path(trainer.default_local_dir)
    return Path(found) if found else None


def load(checkpoint: Path, problems: Problems) -> Checkpoint:
    """Put the guard where it was at a checkpoint; returns what `opened` goes on from.

    Raises:
        UserError: the checkpoint has no guard, or settings or problems differ.
    """
    folder = checkpoint / FOLDER
    if not folder.is_dir():
        raise UserError(
            f"{folder}: missing; the checkpoint is none of trainer_mode=ttrl_guard, so start "
            "from its model instead, with another trainer.default_local_dir"
        )
    saved = read_checkpoint(folder)
    check_same(saved.config, problems.supervisor.config, folder)
    problems.restore({name: read_file(folder / name) for name in saved.files})
    return saved


def measured(metrics: Mapping[str, Any], timers: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of a step that verl measures; NaN where it did not."""
    found = {**metrics, **timers}
    return {name: float(found.get(key, np.nan)) for name, key in _STEPS.items()}


def evaluated(scores: NDArray[np.float64], n_problems: int) -> dict[str, float]:
    """Return the columns of an evaluation by verl; pass@1 only of scores from 0 to 1."""
    is_share = scores.size and scores.min() >= 0 and scores.max() <= 1
    return {
        "replicate": 0,
        "pass_at_1": float(scores.mean()) if is_share else np.nan,
        "maj_accuracy": np.nan,
        "n_responses": len(scores) / max(1, n_problems),
    }
