"""All runs of one task over a grid of step sizes as one table, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.columns import floats, where
from lab.compare.collection import Comparison
from lab.compare.own_best import SEED
from lab.compare.tables import metrics, metrics_of
from lab.measures.dynamics import dynamics
from lab.measures.window import run_windows
from lab.stats.paired import Estimate, paired


def over_steps(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every metric of every run, at every step size.

    Args:
        comparisons: one per step size, of one task.

    Returns:
        One row per arm, step size (NaN where it was not noted) and replicate: arm, step_size,
        seed, place, the metrics of `lab.compare.tables.METRICS` in their units, and the window of
        `lab.measures.window.run_windows`: `fr_peak` (% of problems), and `collapse`, `drop`,
        `lead` in epochs.
    """
    return pd.concat([_rows(comparison) for comparison in comparisons], ignore_index=True)


def difference(rows: pd.DataFrame, first: str, second: str, metric: str) -> Estimate:
    """The mean of first - second of one metric, over the seeds that both arms have.

    Args:
        rows: of one step size, or from `lab.compare.own_best.own_best`: one row per arm and seed.
        first: an arm.
        second: another.
        metric: a column.
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
