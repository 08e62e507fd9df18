"""What one worker does: a job in, its numbers or the reason of its failure out."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.errors import UserError
from sim.engine.measure import MEASURES, measure, measure_trace
from sim.engine.run import simulate
from sim.settings.config import SimConfig
from sim.studies.arms.controls import find
from sim.studies.sweep.plan import Job

FACTS = ("step_factor", "skip_rate", "achieved_ratio")
"""Columns beside the measures: a control's number and how well it met its target."""


@dataclass(frozen=True, slots=True)
class Task:
    """A job with the numbers that it is matched to."""

    job: Job
    guard: pd.DataFrame | None = None
    unguarded: pd.DataFrame | None = None
    traces: Path | None = None
    """Folder for full traces, one run folder per job; none if left out."""

    @property
    def visits(self) -> int:
        """Visits of one run: how much work it is."""
        c = self.job.config
        return c.replicates * c.n_problems * (c.epochs + 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job left behind."""

    key: str
    table: pd.DataFrame | None
    """One row per replicate, columns `MEASURES` and `FACTS`; None where it failed."""
    reason: str = ""
    """Why it failed."""


def perform(task: Task) -> Outcome:
    """Do a job; a run that cannot be computed is an outcome, not an error."""
    job = task.job
    try:
        with warnings.catch_warnings():
            # A step that explodes passes through infinity before the engine names it.
            warnings.simplefilter("ignore", RuntimeWarning)
            table = _perform(task)
    except (UserError, ValueError, ArithmeticError, MemoryError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return Outcome(job.key, None, lines[0])
    return Outcome(job.key, table.reset_index())


def _perform(task: Task) -> pd.DataFrame:
    job = task.job
    config, ratio = job.config, float("nan")
    if job.control is None:
        table = _run(config, task.traces and task.traces / job.key)
    else:
        assert task.guard is not None and task.unguarded is not None
        # As `measure` gives them: a control may turn out to be the unguarded run itself.
        guard, unguarded = (t.set_index("replicate") for t in (task.guard, task.unguarded))
        found = find(job.control.kind, config, guard, unguarded, measure)
        config, ratio = found.config, found.achieved_ratio
        table = found.table[list(MEASURES)]
        if task.traces is not None:
            _run(config, task.traces / job.key)
    facts = {
        "step_factor": config.step_factor,
        "skip_rate": config.skip_rate,
        "achieved_ratio": ratio,
    }
    return table.assign(**facts)


def _run(config: SimConfig, folder: Path | None) -> pd.DataFrame:
    if folder is None:
        return measure(config)
    # Under a name of its own until it is whole, so that a killed run is not taken for one.
    started = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(started, ignore_errors=True)
    table = measure_trace(simulate(config, started))
    shutil.rmtree(folder, ignore_errors=True)
    started.rename(folder)
    return table
