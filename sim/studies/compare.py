"""Several arms from the same seeds: same problems, same order, same random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lab.arm_settings import with_arm
from lab.arms import Arm
from lab.errors import UserError
from lab.trace.trace import Trace
from sim.engine.run import measure, simulate
from sim.engine.tally import measure_trace
from sim.settings.config import SimConfig
from sim.studies.arms.controls import Control, check_arms, control, find
from sim.studies.sweep.plan import Sweep
from sim.studies.sweep.pool import Pool
from sim.studies.sweep.run import run_sweep

GRID = "grid"
"""Folder of the runs over step sizes and of the null model, a sweep."""


def compare(
    config: SimConfig, arms: Sequence[Arm], out: Path | str, progress: bool = False
) -> dict[str, Trace]:
    """Run every arm from the same seeds into `out/<arm>`.

    Args:
        config: settings shared by all arms; an arm brings its guard, labels, rule and step
            factor.
        arms: in the order of the runs, see `sim.studies.arms.controls.named`; controls run last.
        out: a new or empty folder.
        progress: show progress bars.

    Returns:
        Traces by the arm's name, in the given order.

    Raises:
        UserError: an arm is there twice or does not fit the settings, a control lacks the arms it
            is matched to, the folder is in use, or a run failed.
    """
    out = Path(out)
    check_arms(tuple(arm.name for arm in arms))
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty; choose another folder")
    traces: dict[str, Trace] = {}
    configs = {arm.name: with_arm(config, arm) for arm in arms}  # all, before the first run
    for arm in sorted(arms, key=lambda a: control(a.name) is not None):
        found = control(arm.name)
        own, facts = configs[arm.name], {}
        if found is not None:
            own, facts = _matched(configs[found.unguarded], found, traces)
            arm = replace(arm, step_factor=own.step_factor)
        traces[arm.name] = simulate(own, out / arm.name, progress, arm=arm, extra=facts)
    return {arm.name: traces[arm.name] for arm in arms}


def rows_of(traces: dict[str, Trace], config: SimConfig) -> pd.DataFrame:
    """The measures of compared arms in the form of a sweep's rows.

    Args:
        traces: by arm.
        config: that they share.

    Returns:
        One row per arm and replicate: policy, step, arm, replicate, status, reason, the measures,
        step_factor, achieved_ratio (NaN for what is no control), key (the arm).
    """
    parts = []
    for name, trace in traces.items():
        extra = trace.run.extra
        facts = {
            "step_factor": extra.get("step_factor", 1.0),
            "achieved_ratio": extra.get("achieved_ratio", float("nan")),
        }
        facts |= {"status": "done", "reason": "", "key": name}
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
    pool: Pool,
    progress: bool = False,
) -> pd.DataFrame:
    """Run the arms over step sizes, and under the null model, as a sweep in `out/grid`.

    Args:
        config: settings shared by all.
        arms: their names.
        out: folder of the comparison.
        steps: step sizes other than that of the settings.
        null: also run everything with independent problems.
        pool: where to run.
        progress: show a progress bar.
    """
    policies = (config.policy, "independent") if null else (config.policy,)
    grid = {
        "policy": tuple(dict.fromkeys(policies)),
        "step": tuple(dict.fromkeys((config.step, *steps))),
    }
    return run_sweep(
        Sweep(base=config, arms=arms, groups=(grid,)), out / GRID, pool, progress=progress
    )


def _matched(
    config: SimConfig, found: Control, traces: dict[str, Trace]
) -> tuple[SimConfig, dict[str, float]]:
    guard, unguarded = (measure_trace(traces[n]) for n in (found.target, found.unguarded))
    result = find(found.kind, config, guard, unguarded, measure)
    facts = {"achieved_ratio": result.achieved_ratio, "skip_rate": result.config.skip_rate}
    return result.config, facts
