"""All runs of one task over step sizes, and the table of every arm at its own best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE
from lab.base.columns import Floats, floats, group_mean, ints, unique, where
from lab.base.stats import Estimate, estimate, paired
from lab.compare.collection import Comparison
from lab.compare.effort import beyond_effort, update_by_replicate
from lab.compare.own_best import METRIC, SEED, edges, own_best
from lab.compare.tables import metrics, metrics_of
from lab.measures.dynamics import dynamics, run_windows
from lab.trace.trace import Trace

SHOWN = ("pass_final", "gain", "against", "effort", "label_final", "TotalDeg", "Learned")
"""Columns of the table that are estimates."""


def over_steps(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every metric of every run, at every step size.

    Args:
        comparisons: one per step size, of one task.

    Returns:
        One row per arm, step size (NaN where it was not noted) and replicate: arm, step_size,
        seed, place, the metrics of `lab.compare.tables.METRICS` in their units, and the window of
        `lab.measures.dynamics.run_windows`: `fr_peak` (% of problems), and `collapse`, `drop`,
        `lead` in epochs.
    """
    return pd.concat([_rows(comparison) for comparison in comparisons], ignore_index=True)


def difference(rows: pd.DataFrame, first: str, second: str, metric: str) -> Estimate:
    """The mean of first - second of one metric, over the seeds that both arms have.

    Args:
        rows: of one step size, or from `lab.compare.own_best.own_best`: one row per arm and seed.
    """
    return paired(_of(rows, first, metric), _of(rows, second, metric))


def _of(rows: pd.DataFrame, arm: str, metric: str) -> pd.Series:
    own = where(rows, arm=arm)
    index = pd.MultiIndex.from_arrays([own[name] for name in SEED])
    return pd.Series(floats(own, metric), index)


def _rows(comparison: Comparison) -> pd.DataFrame:
    table = metrics(comparison)
    parts = []
    for arm, trace in comparison.traces.items():
        window = run_windows(dynamics(trace.visits, trace.evals))
        window = window.assign(fr_peak=100.0 * window["fr_peak"]).drop(columns="peak")
        own = metrics_of(table, arm).join(window)
        pairs = [comparison.pairs[replicate] for replicate in own.index]
        keys = {
            "arm": arm,
            "step_size": np.nan if comparison.step_size is None else comparison.step_size,
            "seed": [seed for seed, _ in pairs],
            "place": [place for _, place in pairs],
        }
        parts.append(pd.concat([pd.DataFrame(keys), own.reset_index(drop=True)], axis=1))
    return pd.concat(parts, ignore_index=True)


def rule_rows(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every run of one task, with what the table needs.

    Args:
        comparisons: one per step size.

    Returns:
        `lab.compare.step_sizes.over_steps` with `update_norm`, `label_final` (% of problems whose
        label is right at the last visit) and `seconds` (median of a step), NaN where not measured.
    """
    traces = [trace for own in comparisons for trace in own.traces.values()]
    facts = pd.concat([_facts(trace) for trace in traces], ignore_index=True)
    return pd.concat([over_steps(comparisons), facts], axis=1)


def rule_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Every arm at its own best step size, chosen without the seeds that it is judged by.

    Args:
        rows: of `rule_rows`, or of the same columns from elsewhere.

    Returns:
        One row per arm, best final pass@1 first: arm, n (seeds), steps (the chosen step sizes,
        comma separated), edge (`smallest`, `largest` where one of them ends the grid), and as
        `lab.base.stats.Estimate` over seeds: pass_final (%), gain (over the start, points),
        against (minus the baseline at its own best, points), effort (minus the baseline at an
        equal update norm, points), label_final (% of labels right at the end), TotalDeg and
        Learned (% of problems); update (mean update norm by that of the baseline at its own
        best), seconds (a step's, by the baseline's at the same step size).
    """
    rows = rows.assign(
        gain=floats(rows, METRIC) - floats(rows, "pass_start"),
        effort=beyond_effort(rows, METRIC),
        seconds=_relative_seconds(rows),
    )
    best = own_best(rows, ["step_size"], METRIC, SEED)
    arms = unique(best, "arm")
    scores = {arm: floats(where(best, arm=arm), METRIC).mean() for arm in arms}
    ranked = sorted(arms, key=lambda arm: -scores[arm])
    return pd.DataFrame([_line(rows, best, arm) for arm in ranked])


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column per number: an estimate `x` becomes `x`, `x_sd`, `x_low`, `x_high`.

    Args:
        table: from `rule_table`, or any other with columns of estimates.
    """
    columns: dict[str, list[object]] = {}
    for name in table.columns:
        values = table[name].tolist()
        if not values or not isinstance(values[0], Estimate):
            columns[str(name)] = values
            continue
        columns[str(name)] = [value.mean for value in values]
        for part in ("sd", "low", "high"):
            columns[f"{name}_{part}"] = [getattr(value, part) for value in values]
    return pd.DataFrame(columns)


def _line(rows: pd.DataFrame, best: pd.DataFrame, arm: str) -> dict[str, object]:
    own = where(best, arm=arm)
    grid = unique(where(rows, arm=arm), "step_size")
    steps = sorted(unique(own, "step_size"))
    found: dict[str, Estimate] = {
        name: estimate(floats(own, name)) for name in SHOWN if name != "against"
    }
    found["against"] = difference(best, arm, BASELINE, METRIC)
    norm = floats(where(best, arm=BASELINE), "update_norm")
    moved = float(norm.mean()) if len(norm) else np.nan
    return {
        "arm": arm,
        "n": len(own),
        "steps": ", ".join(f"{step:g}" for step in steps),
        "edge": ", ".join(edge.side for edge in edges(own, "step_size", grid)),
        **{name: found[name] for name in SHOWN},
        "update": float(floats(own, "update_norm").mean()) / moved if moved else np.nan,
        "seconds": estimate(floats(own, "seconds")).mean,
    }


def _relative_seconds(rows: pd.DataFrame) -> Floats:
    """Seconds by the baseline's mean at the same step size, NaN where it has none."""
    own = where(rows, arm=BASELINE)
    steps, seconds = floats(own, "step_size"), floats(own, "seconds")
    of_step = {step: seconds[steps == step].mean() for step in set(steps)}
    below = np.array([of_step.get(step, np.nan) for step in floats(rows, "step_size")])
    return floats(rows, "seconds") / below


def _facts(trace: Trace) -> pd.DataFrame:
    """One row per replicate, in order."""
    table = update_by_replicate(trace.steps).to_frame().assign(seconds=np.nan)
    if "seconds_step" in trace.steps:
        table["seconds"] = trace.steps.groupby("replicate")["seconds_step"].median()
    # A killed run may have written visits and no step.
    return table.reindex(trace.replicates).assign(label_final=_right_at_the_end(trace))


def _right_at_the_end(trace: Trace) -> Floats:
    """(replicates,) percent of the problems whose last label is right; NaN without truth."""
    visits = trace.visits.sort_values("visit", kind="stable")
    last = visits.drop_duplicates(["replicate", "problem"], keep="last")
    known = np.isfinite(floats(last, "label_accuracy"))
    right = np.where(known, floats(last, "label_correct"), np.nan)
    _, place = np.unique(ints(last, "replicate"), return_inverse=True)
    return 100.0 * group_mean(right, place, len(trace.replicates))
