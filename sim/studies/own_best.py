"""Every arm at its own best setting, chosen without the replicates that it is judged by.

The best of several settings looks better than it is on the replicates that chose it, the more so
the more settings there are. So the replicates are cut into two halves: each half is judged at the
setting that was best on the other half. The chosen settings may differ between the halves. The
best of several rivals is chosen in the same way, arm and setting at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.columns import floats, ints
from lab.stats.paired import estimate
from sim.studies.frames import done, equal, groups, mean, unique, where

STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Step sizes that an arm chooses its best from: from next to no training to where labels that are
kept for ever have gained all they can."""

SCORE_COLUMNS = ("arm", "score", "gain", "low", "high", "n", "best", "edge")


@dataclass(frozen=True, slots=True)
class Edge:
    """A best setting at the end of the grid: a better one may lie beyond it."""

    arm: str
    value: float
    side: str
    """`smallest` or `largest`."""


def own_best(rows: pd.DataFrame, over: Sequence[str], metric: str) -> pd.DataFrame:
    """The rows of every arm at its best settings.

    Args:
        rows: of `run_sweep`, one row per setting, arm and replicate; failed ones do not count.
        over: columns of the settings to choose from.
        metric: what is highest at the best; the mean over replicates decides.

    Returns:
        Rows of the input, by arm and then replicate, one each, with the settings that were chosen
        for it. With one replicate there is no other half, and its own best is taken.
    """
    rows = done(rows)
    half = _half(rows)
    of_arms = (equal(rows, "arm", arm) for (arm,), _ in groups(rows, ["arm"]))
    parts = [_judged(where(rows, own), half[own], over, metric) for own in of_arms]
    return pd.concat(parts, ignore_index=True) if parts else rows


def best_among(
    rows: pd.DataFrame, arms: Sequence[str], over: Sequence[str], metric: str
) -> pd.DataFrame:
    """The rows of the best of several arms at its best settings.

    Args:
        rows: as for `own_best`, of any arms.
        arms: to choose from.
        over: columns of the settings to choose from.
        metric: what is highest at the best.

    Returns:
        Rows of the input by replicate, one each, with the arm and the settings that were chosen
        for it; none where none of the arms was run.
    """
    rows = done(rows)
    chosen = np.asarray(rows["arm"].isin(list(arms)))
    return _judged(where(rows, chosen), _half(rows)[chosen], ["arm", *over], metric)


def best_setting(rows: pd.DataFrame, over: Sequence[str], metric: str) -> tuple[object, ...]:
    """The setting with the highest mean of the rows; the first of equals."""
    means = {key: mean(part, metric) for key, part in groups(rows, over)}
    return max(means, key=lambda key: (not np.isnan(means[key]), means[key]))


def edges(best: pd.DataFrame, name: str, grid: Sequence[float]) -> list[Edge]:
    """Arms of which a best setting lies at the end of the grid.

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


def best_scores(
    rows: pd.DataFrame, by: Sequence[str], name: str, metric: str = "pass_final"
) -> pd.DataFrame:
    """Every arm's score at its own best of one setting, in every cell of others.

    Args:
        rows: of `run_sweep`.
        by: columns that make a cell.
        name: the setting that every arm chooses.
        metric: what is highest at the best.

    Returns:
        One row per cell and arm: the columns of `by`, arm, score (mean of the metric), gain (mean
        pass@1 gained by training, paired within the replicates) with its 95 % t-interval low and
        high, n, best (the chosen values, comma separated), edge (`smallest` or `largest` where one
        of them ends the grid, else empty).
    """
    rows = done(rows).drop_duplicates([*by, name, "arm", "replicate"])
    lines = []
    for cell, part in groups(rows, by):
        best = own_best(part, [name], metric)
        sides = {edge.arm: edge.side for edge in edges(best, name, unique(part, name))}
        for (arm,), own in groups(best, ["arm"]):
            gain = estimate(floats(own, "pass_final") - floats(own, "pass_start"))
            chosen = ", ".join(f"{v:g}" for v in sorted(unique(own, name)))
            numbers = [mean(own, metric), gain.mean, gain.low, gain.high, gain.n]
            lines.append([*cell, arm, *numbers, chosen, sides.get(str(arm), "")])
    return pd.DataFrame(lines, columns=[*by, *SCORE_COLUMNS])


def _half(rows: pd.DataFrame) -> NDArray[np.intp]:
    # Neighbours go to different halves, so that any trend in the replicates is shared out.
    return np.searchsorted(np.unique(ints(rows, "replicate")), ints(rows, "replicate")) % 2


def _judged(
    own: pd.DataFrame, half: NDArray[np.intp], over: Sequence[str], metric: str
) -> pd.DataFrame:
    """One row per replicate, at the best of the other half."""
    if not len(own):
        return own
    parts = [_judged_half(own, half, which, over, metric) for which in (0, 1)]
    return pd.concat(parts).sort_values("replicate", kind="stable").reset_index(drop=True)


def _judged_half(
    own: pd.DataFrame, half: NDArray[np.intp], which: int, over: Sequence[str], metric: str
) -> pd.DataFrame:
    choosing = where(own, half != which)
    best = best_setting(choosing if len(choosing) else own, over, metric)
    at = [equal(own, name, value) for name, value in zip(over, best, strict=True)]
    return where(own, np.all([*at, half == which], axis=0))
