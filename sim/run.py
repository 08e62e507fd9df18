"""`simulate`: a run from settings to a trace, in memory or in a run folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lab import Manifest, MemoryRun, RunFolder, Trace, load
from lab.arms import ALL_ARMS, Arm
from lab.arms import arm as named_arm
from lab.settings import to_values
from sim.config import SimConfig
from sim.engine import backend, run_epochs


def simulate(
    config: SimConfig,
    folder: Path | str | None = None,
    progress: bool = False,
    *,
    arm: Arm | None = None,
    extra: dict[str, Any] | None = None,
) -> Trace:
    """Run a simulation.

    Args:
        config: all settings.
        folder: a new or empty folder for the trace, which is written while the run goes on; in
            memory if left out.
        progress: show a progress bar.
        arm: names the run in comparisons; found from the guard's settings if left out.
        extra: facts for the manifest.

    Returns:
        The trace, with visit 0 before training.

    Raises:
        UserError: a file of the settings has a defect or the folder is in use, and nothing is
            written; or the logits stopped being finite.
    """
    # First: a bad kernel, histogram or trace must be refused before anything is written.
    parts = run_epochs(config)
    manifest = _manifest(config, arm or _arm_of(config), extra or {})
    recorder: MemoryRun | RunFolder
    recorder = (
        MemoryRun(manifest)
        if folder is None
        else RunFolder.create(folder, manifest, in_background=True)
    )
    with recorder if isinstance(recorder, RunFolder) else nullcontext():
        for done, part in enumerate(
            tqdm(parts, manifest.title, config.epochs + 1, unit="epoch", disable=not progress)
        ):
            recorder.write_visits(part.visits, copy=False)
            if part.steps is not None:
                recorder.write_steps(part.steps, copy=False)
            recorder.write_evals(part.evals, copy=False)
            recorder.note(progress=done / config.epochs)
    if isinstance(recorder, MemoryRun):
        manifest.end("finished")
        return Trace.of(recorder)
    return load(recorder.path)


def of_arm(config: SimConfig, arm: Arm) -> SimConfig:
    """The settings of one arm: its guard, its labels and its factor on the step."""
    return replace(config, guard=arm.guard, labels=arm.labels, step_factor=arm.step_factor)


def _arm_of(config: SimConfig) -> Arm:
    """The named arm with these settings, or one that says what it is."""
    found = Arm("custom", "Custom guard", config.guard, config.labels, config.step_factor)
    for name in (*ALL_ARMS, "release", "frs", "mps", "rcsu"):
        named = named_arm(name, config.step_factor)
        if (named.guard, named.labels) == (config.guard, config.labels):
            return named
    return found


def _manifest(config: SimConfig, arm: Arm, extra: dict[str, Any]) -> Manifest:
    return Manifest.new(
        "sim",
        arm.name,
        arm.title,
        n_problems=config.n_problems,
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=config.population,
        backend=backend(config),
        extra={"step_factor": config.step_factor, **extra},
    )
