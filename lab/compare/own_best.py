"""Every arm at its own best setting, chosen without the replicates that it is judged by.

The best of several settings looks better than it is on the replicates that chose it, the more so
the more settings there are. So the replicates are split into two halves: each half is judged at the
setting that was best on the other half. The chosen settings may differ between the halves. The
best of several rivals is chosen in the same way, arm and setting at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.columns import Ints, finite_mean, groups, select, unique, where

REPLICATE = ("replicate",)
"""Columns that name a replicate in a table of one simulation or sweep."""
SEED = ("seed", "place")
"""Columns that name a replicate in a table of run folders: place among those of one seed."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A best setting at the end of the grid: a better one may lie beyond it."""

    arm: str
    value: float
    side: str
    """`smallest` or `largest`."""


def own_best(
    rows: pd.DataFrame,
    over: Sequence[str],
    metric: str = "pass_final",
    unit: Sequence[str] = REPLICATE,
) -> pd.DataFrame:
    """The rows of every arm at its best settings.

    Args:
        rows: one row per setting, arm and replicate.
        over: columns of the settings to choose from.
        metric: column that is highest at the best setting; the mean over replicates decides.
        unit: columns that name a replicate.

    Returns:
        Rows of the input by arm and then replicate, one each, with the settings that were chosen
        for it. Replicates that lack one of the arm's settings are left out. A single replicate has
        no other half and takes its own best.
    """
    parts = [_judged(part, over, metric, unit) for _, part in groups(rows, ["arm"])]
    return pd.concat(parts, ignore_index=True) if parts else rows


def best_among(
    rows: pd.DataFrame,
    arms: Sequence[str],
    over: Sequence[str],
    metric: str = "pass_final",
    unit: Sequence[str] = REPLICATE,
) -> pd.DataFrame:
    """The rows of the best of several arms at its best settings.

    Args:
        rows: as for `own_best`, of any arms.
        arms: to choose from.
        over: columns of the settings to choose from.
        metric: column that is highest at the best setting.
        unit: columns that name a replicate.

    Returns:
        Rows of the input by replicate, one each, with the arm and the settings that were chosen
        for it; none where none of the arms was run.
    """
    candidates = select(rows, np.asarray(rows["arm"].isin(list(arms)), bool))
    return _judged(candidates, ["arm", *over], metric, unit)


def best_setting(rows: pd.DataFrame, over: Sequence[str], metric: str) -> tuple[object, ...]:
    """The setting with the highest mean of the metric; the first of equals, NaN last."""
    means = {key: finite_mean(part, metric) for key, part in groups(rows, over)}
    return max(means, key=lambda key: (not np.isnan(means[key]), means[key]))


def edges(best: pd.DataFrame, name: str, grid: Sequence[float]) -> list[Edge]:
    """The best settings that lie at an end of the grid.

    Args:
        best: from `own_best`.
        name: the column that was chosen from.
        grid: all its values.
    """
    ends = {min(grid): "smallest", max(grid): "largest"}
    return [
        Edge(str(arm), value, ends[value])
        for (arm,), part in groups(best, ["arm"])
        for value in sorted(unique(part, name))
        if value in ends and len(ends) > 1
    ]


def _judged(
    rows: pd.DataFrame, over: Sequence[str], metric: str, unit: Sequence[str]
) -> pd.DataFrame:
    """One row per replicate, at the best setting of the other half."""
    rows, number = _complete(rows, over, unit)
    # Neighbours go to different halves, so that any trend in the replicates is shared out.
    half = number % 2
    parts = []
    for judged in np.unique(half):
        others = select(rows, half != judged)
        best = best_setting(others if len(others) else rows, over, metric)
        chosen = dict(zip(over, best, strict=True))
        parts.append(where(select(rows, half == judged), **chosen))
    together = pd.concat(parts, ignore_index=True) if parts else rows
    return together.sort_values(list(unit), kind="stable", ignore_index=True)


def _complete(
    rows: pd.DataFrame, over: Sequence[str], unit: Sequence[str]
) -> tuple[pd.DataFrame, Ints]:
    """The rows of replicates that have every setting, and (rows,) number of the replicate."""
    replicate = rows.groupby(list(unit)).ngroup().to_numpy()
    setting = rows.groupby(list(over), dropna=False).ngroup().to_numpy()
    present = np.zeros((replicate.max(initial=-1) + 1, setting.max(initial=-1) + 1), bool)
    present[replicate, setting] = True
    complete = np.asarray(present.all(axis=1))
    number = np.cumsum(complete) - 1
    return select(rows, complete[replicate]), number[replicate[complete[replicate]]]
