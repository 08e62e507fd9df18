"""The jobs of a sweep: runs that cells share, and the work of one job.

Every arm is run in every cell. Two (cell, arm) pairs whose runs cannot differ share one job: plain
TTRL is run once for all values of the guard's thresholds. A job is known by a hash of all its
settings and of the content of the files that they name, which is how a sweep is continued.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from guard_core import ConfigError, GuardConfig
from lab.arm_settings import with_arm
from lab.arms import arm
from lab.errors import UserError, first_line
from lab.settings import to_values
from sim.engine.run import measure, simulate
from sim.engine.tally import MEASURES, measure_trace
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.arms.controls import Control, control, find, guard_among
from sim.studies.sweep.axes import Assignments, assign
from sim.studies.sweep.folder import Outcome
from sim.studies.sweep.plan import Cell, Sweep, files_of
from sim.world.observe.strength import only_read


@dataclass(frozen=True, slots=True)
class Job:
    """One run, or the search for a control's number."""

    key: str
    """Hash of all settings and files."""
    config: SimConfig
    control: Control | None = None
    guard_key: str = ""
    """Job of the guarded arm that a control is matched to."""
    unguarded_key: str = ""
    """Job of the arm that a control runs before its number is set."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A run whose settings contradict each other."""

    key: str
    reason: str


def job_of(
    sweep: Sweep, cell: Cell, name: str, files: Mapping[str, str] | None = None
) -> Job | Impossible:
    """The job of one arm in one cell.

    Args:
        sweep: that the cell is of.
        cell: the settings.
        name: of the arm.
        files: path to hash, see `sim.studies.sweep.plan.contents`.
    """

    def plain(config: SimConfig) -> dict[str, Any]:
        read_files = files_of(config, files or {})
        # Only where there are any: runs that read no file keep the keys they always had.
        return to_values(config) | ({"files": read_files} if read_files else {})

    try:
        found = control(name)
        if found is None:
            config = _arm_config(sweep, cell, name)
            return Job(_key("", plain(config)), config)
        config = _arm_config(sweep, cell, found.unguarded)
        guard = _arm_config(sweep, cell, found.target)
    except (UserError, ConfigError) as error:
        values = {"arm": name, **cell.values, "definition": to_values(sweep.base)}
        return Impossible(_key("impossible", values), str(error))
    values = {"unguarded": plain(config), "guard": plain(guard)}
    return Job(
        _key(found.kind, values),
        config,
        found,
        guard_key=_key("", plain(guard)),
        unguarded_key=_key("", plain(config)),
    )


def _arm_config(sweep: Sweep, cell: Cell, name: str) -> SimConfig:
    """The settings of an arm; the varied settings of the guard apply to every arm's guard."""
    own = arm(name)
    base = sweep.base
    guard = guard_among(name, base)
    own = replace(own, guard=guard, step_factor=base.step_factor * own.step_factor)
    config = assign(with_arm(base, own), {**_size(sweep, cell), **cell.values})
    return only_read(replace(config, guard=_needed(config.guard)))


def _needed(guard: GuardConfig) -> GuardConfig:
    """The guard without settings that cannot reach the run: with all parts off, most."""
    usual = GuardConfig()
    if guard.label_from != "memory":
        guard = replace(guard, discount=usual.discount)
    if guard.label_from == "frozen":
        guard = replace(guard, hysteresis=usual.hysteresis)
    if guard.brake == 1:
        guard = replace(guard, brake_on=usual.brake_on, brake_above=usual.brake_above)
    if guard.acts:
        return guard
    return GuardConfig(
        frs=False,
        mps=False,
        rcsu=False,
        tie_break=guard.tie_break,
        label_from=guard.label_from,
        discount=guard.discount,
        hysteresis=guard.hysteresis,
        skip_by=guard.skip_by,
        advantage_scale=guard.advantage_scale,
        negative_scale=guard.negative_scale,
        brake=guard.brake,
        brake_on=guard.brake_on,
        brake_above=guard.brake_above,
    )


def _size(sweep: Sweep, cell: Cell) -> Assignments:
    """A varied population brings its size and length, unless the sweep's own were set by hand."""
    name = cell.values.get("population")
    usual = NAMED.get(sweep.base.population)
    law = NAMED.get(name) if isinstance(name, str) else None
    if law is None or usual is None:
        return {}
    sizes = {}
    for field_name in ("n_problems", "epochs"):
        if getattr(sweep.base, field_name) == getattr(usual, field_name):
            sizes[field_name] = getattr(law, field_name)
    return sizes


def _key(kind: str, values: Mapping[str, Any]) -> str:
    text = msgspec.json.encode([kind, values], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:20]


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


def perform(task: Task) -> Outcome:
    """Do a job; a run that cannot be computed is an outcome, not an error."""
    job = task.job
    try:
        with warnings.catch_warnings():
            # A step that explodes passes through infinity before the engine names it.
            warnings.simplefilter("ignore", RuntimeWarning)
            table = _perform(task)
    except (UserError, ValueError, ArithmeticError, MemoryError) as error:
        return Outcome(job.key, None, first_line(error))
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
