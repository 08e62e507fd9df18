"""Several arms from the same seeds (problems, order, draws), and every difference between them.

Arms are compared at equal step and each at its own best.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, Arm, is_guarded
from lab.base.columns import floats, groups, select, unique, where
from lab.base.errors import UserError
from lab.base.settings import flattened, from_values, to_values
from lab.base.stats import contrast_table
from lab.compare.collection import GRID, NULL
from lab.compare.own_best import BEST_RIVAL, METRIC, best_rival, own_best
from lab.measures import MEASURES, measure_trace
from lab.study import Job, Outcome, Report, Study
from lab.trace.manifest import FILE_NAME, read_manifest
from lab.trace.parts import LOCK_NAME, locked
from lab.trace.trace import Trace, load
from sim.engine.run import simulate
from sim.settings.config import SimConfig
from sim.studies.controls import named
from sim.studies.sweep import Sweep, check_workers, pooled, run_sweep
from sim.world.populations import ability_sampler

EQUAL, BEST = "equal step", "own best step"


def done(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep that did not fail."""
    return where(rows, status="done")


def contrasts(rows: pd.DataFrame, by: Sequence[str], seed: int) -> pd.DataFrame:
    """Return all paired differences between arms within every choice of the settings `by`.

    Args:
        rows: of `run_sweep`, or of the same form: settings, arm, replicate, status, measures.
        by: columns within whose values arms are compared. With several values of `step` among
            them, every arm is also compared at its own best step, and every guarded arm there
            with the best of its rivals.

    Returns:
        One row per setting, pair of arms and metric: at ("equal step" or "own best step"), the
        columns of `by` (step is NaN at the best), arm, against (an arm or `BEST_RIVAL`), metric,
        mean (arm - against), sd, low, high (bootstrap), t_low, t_high, n, verdict. Metrics are
        `MEASURES` and `update`, the mean update norm in percent of TTRL's where it was run.
    """
    rows = done(rows)
    parts = [
        _differences(part, EQUAL, dict(zip(by, cell, strict=True)), seed)
        for cell, part in groups(rows, by)
    ]
    others = [name for name in by if name != "step"]
    for cell, part in groups(rows, others) if "step" in by else ():
        if len(unique(part, "step")) > 1:
            settings = {**dict(zip(others, cell, strict=True)), "step": np.nan}
            best = at_own_best(part)
            parts.append(_differences(best, BEST, settings, seed))
            parts.append(_to_best_rival(part, best, settings, seed))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def at_own_best(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every arm at its own best step, see `lab.compare.own_best.own_best`."""
    return own_best(done(rows), ["step"], METRIC)


def _to_best_rival(
    rows: pd.DataFrame,
    best: pd.DataFrame,
    settings: dict[str, object],
    seed: int,
) -> pd.DataFrame:
    """Guarded arms at their best minus the best rival at its best."""
    guarded = select(best, np.array([is_guarded(arm) for arm in best["arm"]], bool))
    # The rival comes first, so that the differences are arm minus rival.
    both = pd.concat([best_rival(done(rows)).assign(arm=BEST_RIVAL), guarded], ignore_index=True)
    return where(_differences(both, BEST, settings, seed), against=BEST_RIVAL)


def _differences(
    rows: pd.DataFrame, at: str, settings: dict[str, object], seed: int
) -> pd.DataFrame:
    table = contrast_table(_metrics(rows), seed)
    for position, (name, value) in enumerate({"at": at, **settings}.items()):
        table.insert(position, name, value)
    return table


def _metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """Measures by (arm, replicate)."""
    index = pd.MultiIndex.from_frame(pd.DataFrame({n: rows[n] for n in ("arm", "replicate")}))
    table = pd.DataFrame({name: floats(rows, name) for name in MEASURES}, index)
    base = where(rows, arm=BASELINE)
    if len(base):
        norms = dict(zip(base["replicate"], floats(base, "update_norm"), strict=True))
        base_norms = np.array([norms.get(r, np.nan) for r in rows["replicate"]])
        table["update"] = 100 * floats(rows, "update_norm") / base_norms
    return table


TABLE = "comparison.parquet"
"""Every difference between the arms."""


def compare(
    config: SimConfig,
    arms: Sequence[Arm],
    out: Path | str,
    progress: bool = False,
    workers: int = 1,
) -> dict[str, Trace]:
    """Run every arm from the same seeds into `out/<arm>`; arms that are finished there are kept.

    Args:
        config: settings shared by all arms; an arm brings its guard, labels, rule and step
            factor.
        arms: see `sim.studies.controls.named`; controls run last.
        out: a new or empty folder, or that of a comparison with the same settings.
        workers: processes, one arm each.

    Returns:
        Traces by the arm's name, in the given order.

    Raises:
        UserError: an arm is there twice or does not fit the settings, a control lacks the arms it
            is matched to, the folder holds something else, or a run failed.
    """
    check_workers(workers)
    out, given = Path(out), {arm.name: arm for arm in arms}

    def config_of(name: str) -> SimConfig:
        return with_arm(config, given.get(name) or named(name, config))

    def run(jobs: Sequence[Job], report: Report) -> list[Outcome]:
        left = [job for job in jobs if not job.finished]
        shown = progress and workers == 1
        tasks = [(job, given.get(job.arm) or named(job.arm, config), shown) for job in left]
        with closing(pooled(_simulate, tasks, workers)) as found:
            list(found)
        return [Outcome(job, 1.0) for job in jobs]

    study = Study(
        folder=out,
        arms=[arm.name for arm in arms],
        seeds=[config.seed],
        config_of=config_of,
        run_jobs=run,
        replicates=True,
    )
    for job in study.all_jobs():  # all, before the first run
        _check_stored(job)
    if config.policy != "measured":
        ability_sampler(config)  # refuses a bad histogram or trace before anything is written
    try:
        out.mkdir(parents=True, exist_ok=True)
        own = {GRID, TABLE, LOCK_NAME, *study.arms, *(f".{name}" for name in study.arms)}
        others = [entry.name for entry in out.iterdir() if entry.name not in own]
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}); choose another") from error
    if strange := [n for n in others if not (out / n / FILE_NAME).is_file()]:
        raise UserError(f"{out}: is not empty, it holds {min(strange)}; choose another folder")
    with locked(out):
        study.run()
    return {name: load(out / name) for name in study.arms}


def _simulate(task: tuple[Job, Arm, bool]) -> None:
    job, own, progress = task
    if job.begun:  # it has no checkpoints, and the same seed makes it again
        shutil.rmtree(job.folder)
    own = replace(own, step_factor=job.config.step_factor)
    simulate(job.config, job.folder, progress, arm=own)


def _check_stored(job: Job) -> None:
    """Refuse a run of other settings."""
    if not job.begun:
        return
    run = read_manifest(job.folder)
    new = flattened(to_values(job.config))
    old = flattened(to_values(from_values(run.config, SimConfig, str(job.folder))))
    if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        raise UserError(
            f"{job.folder}: settings differ from those it was run with: {', '.join(changed)}; "
            "leave them out, or choose another folder"
        )


def rows_of(traces: dict[str, Trace], config: SimConfig) -> pd.DataFrame:
    """The measures of compared arms in the form of a sweep's rows.

    Returns:
        One row per arm and replicate: policy, step, arm, replicate, status, reason, the measures,
        step_factor, achieved_ratio (NaN for what is no control), key (the arm).
    """
    parts = []
    for name, trace in traces.items():
        extra = trace.run.extra
        ratio = extra.get("achieved_ratio")  # of controls; None where there was nothing to match
        facts = {
            "step_factor": extra.get("step_factor", 1.0),
            "achieved_ratio": float("nan") if ratio is None else ratio,
            **{"status": "done", "reason": "", "key": name},
        }
        table = measure_trace(trace).reset_index().assign(**facts)
        table.insert(0, "arm", name)
        table.insert(0, "step", config.step)
        table.insert(0, "policy", config.policy)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)


def run_grid(
    config: SimConfig,
    arms: tuple[str, ...],
    out: Path,
    steps: tuple[float, ...],
    null: bool,
    workers: int = 1,
    progress: bool = False,
) -> pd.DataFrame:
    """Run the arms over step sizes, and under the null model, as a sweep in `out/grid`.

    Args:
        steps: step sizes other than that of the settings.
    """
    policies = (config.policy, NULL) if null else (config.policy,)
    grid = {
        "policy": tuple(dict.fromkeys(policies)),
        "step": tuple(dict.fromkeys((config.step, *steps))),
    }
    sweep = Sweep(base=config, arms=arms, groups=(grid,))
    return run_sweep(sweep, out / GRID, workers, progress=progress)
