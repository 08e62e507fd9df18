"""Every arm at its own best setting, chosen without the replicates that it is judged by.

The best of several settings looks better than it is on the replicates that chose it, the more so
the more settings there are. So the replicates are split into two halves: each half is judged at the
setting that was best on the other half. The chosen settings may differ between the halves. The
best of several rivals is chosen in the same way, arm and setting at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.base.arms import CEILING, is_guarded, rivals, title
from lab.base.columns import Ints, finite_mean, floats, groups, select, unique, where
from lab.base.stats import contrast_table, with_interval

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


METRIC = "pass_final"
"""Metric by which the best step is chosen."""
BEST_RIVAL = "best rival"
"""Name of the best arm without a guard, itself chosen on the other half of the replicates."""


def best_rival(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best arm without a guard at its best step, see `best_among`."""
    return best_among(rows, rivals(unique(rows, "arm")), ["step"], METRIC)


def own_best_words(rows: pd.DataFrame, seed: int) -> list[str]:
    """Return sentences on arms at their own best steps.

    They compare guarded arms with the best rival, name the arms that no step improves, and warn
    where a best step lies at an end of the grid.

    Args:
        rows: of one policy, over several steps, one per step, arm and replicate: step, arm,
            replicate, pass_start and pass_final (percent).
    """
    best = own_best(rows, ["step"], METRIC)
    useless = [
        str(arm)
        for (arm,), part in groups(best, ["arm"])
        if finite_mean(part, METRIC) <= finite_mean(part, "pass_start")
    ]
    lines = [*_against_rival(rows, best, seed), *_no_gain(best, useless)]
    return lines + edge_words(edges(best, "step", unique(rows, "step")), useless)


def edge_words(at_ends: Iterable[Edge], useless: Collection[str] = ()) -> list[str]:
    """Return warnings where a best step lies at an end of the grid.

    Args:
        at_ends: from `lab.compare.own_best.edges`.
        useless: arms that no step improves: the less they train the better, so the smallest step
            of any grid is their best.
    """
    by_side: dict[tuple[float, str], list[str]] = {}
    for edge in at_ends:
        if edge.arm == CEILING or (edge.side == "smallest" and edge.arm in useless):
            continue
        by_side.setdefault((edge.value, edge.side), []).append(title(edge.arm))
    return [
        f"warning: the best step of {', '.join(arms)} is the {side} of the grid, {value:g}: "
        f"a {'smaller' if side == 'smallest' else 'larger'} one may be better still"
        for (value, side), arms in by_side.items()
    ]


def _against_rival(rows: pd.DataFrame, best: pd.DataFrame, seed: int) -> Iterator[str]:
    guarded = select(best, np.array([is_guarded(arm) for arm in best["arm"]], bool))
    rival = best_rival(rows)
    if not len(guarded) or not len(rival):
        return
    # The rival comes first, so that the differences are arm minus rival.
    both = pd.concat([rival.assign(arm=BEST_RIVAL), guarded], ignore_index=True)
    scores = both.set_index(["arm", *REPLICATE]).reindex(columns=[METRIC])
    table = contrast_table(scores, seed)
    for row in where(table, against=BEST_RIVAL).to_dict("records"):
        gap = with_interval(row["mean"], row["low"], row["high"])
        yield (
            f"{title(str(row['arm']))} at its best minus the best rival at its best "
            f"({_chosen(rival)}): pass@1 {gap} points, {row['verdict']}"
        )


def _chosen(rows: pd.DataFrame) -> str:
    """Arms and steps that were chosen on either half."""
    pairs = dict.fromkeys(zip(rows["arm"], floats(rows, "step"), strict=True))
    return ", ".join(f"{title(arm)} at {step:g}" for arm, step in pairs)


def _no_gain(best: pd.DataFrame, useless: Collection[str]) -> Iterator[str]:
    scores = [f"{title(a)} {finite_mean(where(best, arm=a), METRIC):.1f}" for a in useless]
    if scores:
        yield (
            f"no step of the grid is better than no training at all, "
            f"{finite_mean(best, 'pass_start'):.1f}, for: {', '.join(scores)}"
        )
