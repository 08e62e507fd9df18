"""The manifest of a new run, the settings in it, and those that may change. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.arm_settings import arm_of
from lab.base.arms import title
from lab.base.errors import UserError
from lab.base.settings import from_values, to_values
from lab.trace.manifest import FILE_NAME, Manifest, read_manifest
from real.settings.config import TrainConfig

CHANGEABLE = frozenset(
    {
        "attention",
        "checkpoint_every",
        "checkpoint_keep",
        "checkpoint_minutes",
        "data_dir",
        "device",
        "engine_adapters",
        "engine_exchange",
        "engine_memory",
        "engine_timeout",
        "engine_tp",
        "engine_url",
        "gradient_checkpointing",
        "hub",
        "log",
        "max_refused",
        "max_rows",
        "max_unread",
        "micro_tokens",
        "model",
        "offload_optimizer",
        "problems",
        "rank_timeout",
        "restart_engine",
        "save_model",
        "threads",
    }
)
"""Settings of where and how the work is done. Some change the rounding, so that the resumed run is
correct but not equal to the bit. `model` and `problems` may move: their content is compared."""


def manifest_of(
    config: TrainConfig,
    n_problems: int,
    task: str,
    backend: str,
    arm: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the `run.json` of a run that starts now."""
    name = arm or arm_of(config).name
    return Manifest.new(
        "real",
        name,
        title(name),
        n_problems=n_problems,
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=task,
        backend=backend,
        extra={"step_factor": config.step_factor, **(facts or {})},
    )


def stored_config(folder: Path) -> TrainConfig:
    """Return the settings of a run folder."""
    manifest = read_manifest(folder)
    if manifest.world != "real":
        raise UserError(f"{folder}: a run of the simulator; give a run of the trainer")
    return _config(manifest.config, folder)


def check_same(
    before: Mapping[str, Any],
    config: TrainConfig,
    folder: Path,
    fixed: frozenset[str] = frozenset(),
) -> None:
    """Refuse settings that would make it another run."""
    old, new = to_values(_config(before, folder)), to_values(config)
    changes = list(_changes(old, new, "", CHANGEABLE - fixed))
    if changes:
        raise UserError(
            f"{folder}: settings differ from those it was run with: {', '.join(changes)}; "
            "leave them out, or start a new run"
        )


def _config(values: Mapping[str, Any], folder: Path) -> TrainConfig:
    return from_values(values, TrainConfig, f"{folder}/{FILE_NAME}").settled()


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str, free: frozenset[str]
) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after or (not prefix and name in free):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, f"{prefix}{name}.", free)
        else:
            yield f"{prefix}{name} = {after!r} (was {before!r})"
