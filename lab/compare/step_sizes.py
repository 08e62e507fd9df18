"""Arms over a grid of step sizes: every arm at equal steps, and each at its own best (SPEC 12)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.columns import floats
from lab.compare.collection import Comparison
from lab.compare.tables import metrics
from lab.measures.dynamics import dynamics
from lab.measures.window import run_windows
from lab.stats.paired import Estimate, paired

KEYS = ("arm", "step_size", "seed", "place")
"""Columns of `over_steps` that are not metrics; seed and place say what is paired."""


def over_steps(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every metric of every run, at every step size.

    Args:
        comparisons: one per step size, of one task.

    Returns:
        One row per arm, step size (NaN where it was not noted) and replicate: `KEYS`, the metrics
        of `lab.compare.tables.METRICS` in their units, and the window of
        `lab.measures.window.run_windows`:
        `fr_peak` (% of problems), and `collapse`, `drop`, `lead` in epochs.

    Raises:
        UserError: a problem has fewer visits than its fate needs.
    """
    return pd.concat([_rows(comparison) for comparison in comparisons], ignore_index=True)


def own_best(rows: pd.DataFrame, metric: str = "pass_final") -> pd.DataFrame:
    """The rows of every arm at its own best step size, chosen without the seeds it is judged by.

    The best of several settings looks better than it is on the runs that chose it. So the seeds
    are cut into two halves: each half is judged at the step that was best on the other. Only seeds
    that an arm ran at all of its step sizes take part.

    Args:
        rows: from `over_steps`.
        metric: what is highest at the best; the mean decides.

    Returns:
        Rows of the input, one per arm and seed; with a single seed its own best is taken.
    """
    parts = []
    for arm in dict.fromkeys(rows["arm"].tolist()):
        own = _complete(where(rows, "arm", arm))
        keys = list(zip(own["seed"], own["place"], strict=True))
        order = sorted(set(keys))
        half = np.array([order.index(key) % 2 for key in keys])
        for which in (0, 1):
            choosing = own.take(np.flatnonzero(half != which)) if len(order) > 1 else own
            judged = own.take(np.flatnonzero(half == which))
            if len(judged):
                parts.append(where(judged, "step_size", _best(choosing, metric)))
    return pd.concat(parts, ignore_index=True) if parts else rows.iloc[:0]


def difference(rows: pd.DataFrame, first: str, second: str, metric: str) -> Estimate:
    """The mean of first - second of one metric, over the seeds that both arms have.

    Args:
        rows: of one step size, or from `own_best`: one row per arm and seed.
        first: an arm.
        second: another.
        metric: a column.
    """
    return paired(_of(rows, first, metric), _of(rows, second, metric))


def where(rows: pd.DataFrame, name: str, value: object) -> pd.DataFrame:
    """The rows whose column has a value."""
    return rows.take(np.flatnonzero(np.asarray(rows[name] == value, bool)))


def _complete(own: pd.DataFrame) -> pd.DataFrame:
    """The seeds of one arm that were run at each of its step sizes."""
    run_at = own.groupby(["seed", "place"])["step_size"].transform("nunique").to_numpy()
    return own.take(np.flatnonzero(run_at == own["step_size"].nunique()))


def _best(own: pd.DataFrame, metric: str) -> float:
    """Return the step size with the highest mean, the smallest of equals.

    A step size whose mean is NaN is chosen only where all are, as on problems without answers.
    """
    steps = np.unique(floats(own, "step_size"))
    means = np.array([floats(where(own, "step_size", step), metric).mean() for step in steps])
    return float(steps[np.argmax(np.where(np.isnan(means), -np.inf, means))])


def _of(rows: pd.DataFrame, arm: str, metric: str) -> pd.Series:
    own = where(rows, "arm", arm)
    index = pd.MultiIndex.from_arrays([own["seed"], own["place"]])
    return pd.Series(floats(own, metric), index)


def _rows(comparison: Comparison) -> pd.DataFrame:
    table = metrics(comparison)
    parts = []
    for arm, trace in comparison.traces.items():
        window = run_windows(dynamics(trace.visits, trace.evals))
        window = window.assign(fr_peak=100.0 * window["fr_peak"]).drop(columns="peak")
        at = np.flatnonzero(table.index.get_level_values("arm") == arm)
        own = table.take(at).droplevel("arm").join(window)
        pairs = [comparison.pairs[replicate] for replicate in own.index]
        keys = {
            "arm": arm,
            "step_size": np.nan if comparison.step_size is None else comparison.step_size,
            "seed": [seed for seed, _ in pairs],
            "place": [place for _, place in pairs],
        }
        parts.append(pd.concat([pd.DataFrame(keys), own.reset_index(drop=True)], axis=1))
    return pd.concat(parts, ignore_index=True)
