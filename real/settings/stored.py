"""The settings that a run folder stores, and which of them a continued run may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.arm_settings import arm_of
from lab.base.arms import title
from lab.base.errors import UserError
from lab.base.roles import CHANGEABLE, having, roles_of
from lab.base.settings import check_unchanged, from_values, to_values
from lab.trace.manifest import CHECKPOINTS, FILE_NAME, Manifest, read_manifest
from real.settings.config import TrainConfig


def manifest_of(
    config: TrainConfig,
    n_problems: int,
    task: str,
    backend: str,
    arm: str | None = None,
    **facts: Any,
) -> Manifest:
    """Return the `run.json` of a run that starts now."""
    name = arm or arm_of(config).name
    sizes = {"n_problems": n_problems, "n_votes": config.n_votes, "seeds": [config.seed]}
    run = {"config": to_values(config), "roles": roles_of(config), "task": task, "backend": backend}
    extra = {"step_factor": config.step_factor, **facts}
    return Manifest.new("real", name, title(name), **sizes, **run, extra=extra)


def stored_config(folder: Path) -> TrainConfig:
    """Return the settings of a run folder."""
    manifest = read_manifest(folder)
    if manifest.world != "real":
        raise UserError(f"{folder}: a run of the simulator; give a run of the trainer")
    return _config(manifest.config, folder)


def keeps_nothing(folder: Path) -> bool:
    """Return whether an unfinished run has no checkpoint and writes none, to go on from."""
    return not (folder / CHECKPOINTS).exists() and stored_config(folder).checkpoint_every == 0


def check_same(before: Mapping[str, Any], config: TrainConfig, folder: Path, *fixed: str) -> None:
    """Refuse settings that would make it another run."""
    free = having(roles_of(config), *CHANGEABLE).difference(fixed)
    check_unchanged(folder, to_values(_config(before, folder)), to_values(config), free)


def _config(values: Mapping[str, Any], folder: Path) -> TrainConfig:
    # `answer_timeout` was a setting of earlier versions, without effect now.
    kept = {name: value for name, value in values.items() if name != "answer_timeout"}
    return from_values(kept, TrainConfig, f"{folder}/{FILE_NAME}").settled()
