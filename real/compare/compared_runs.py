"""The runs of a comparison: their settings, where they are, and what they left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lab.arms import arm
from lab.trace.manifest import FILE_NAME, read_manifest
from lab.trace.trace import load
from real.compare.jobs import Job, Outcome
from real.settings.config import TrainConfig


def run_folder(folder: Path, arm_name: str, seed: int) -> Path:
    """Where one run of a comparison is."""
    return folder / arm_name / f"seed-{seed}"


def job_of(
    config: TrainConfig, folder: Path, name: str, seed: int, step_factor: float = 1.0
) -> Job:
    """The run of one arm and seed; `rule_options` are those of arms with the settings' rule."""
    chosen = arm(name, step_factor)
    settings = replace(
        config,
        guard=chosen.guard,
        labels=chosen.labels,
        rule=chosen.rule,
        rule_options=config.rule_options if chosen.rule == config.rule else {},
        step_factor=chosen.step_factor,
        seed=seed,
    )
    return Job(name, settings, run_folder(folder, name, seed))


def finished(folder: Path, name: str, seed: int) -> bool:
    """A run was made to its end."""
    path = run_folder(folder, name, seed)
    return (path / FILE_NAME).is_file() and read_manifest(path).status == "finished"


def steps_of(folder: Path, name: str, seeds: Sequence[int]) -> pd.DataFrame:
    """The steps of one arm, all seeds together."""
    return pd.concat([load(run_folder(folder, name, seed)).steps for seed in seeds])


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that did not end well."""
    return [outcome for outcome in outcomes if outcome.error is not None]
