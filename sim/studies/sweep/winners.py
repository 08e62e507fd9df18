"""The best arm in every cell of a sweep, and the arms that tie with it.

The best arm is the one with the highest mean. Another arm ties with it where the paired difference
over the replicates is within noise, by the t-interval and the bootstrap of `lab.stats.bootstrap`.
True labels are the ceiling and no rival. Many cells are judged at once without a correction: at
95 % one tie in twenty is broken by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.columns import finite_mean, floats, groups, unique, where
from lab.compare.own_best import edges, own_best
from lab.stats.bootstrap import paired_bootstrap
from lab.stats.paired import Estimate, estimate, paired
from sim.studies.arms.controls import CEILING
from sim.studies.sweep.plan import CHOSEN

COLUMNS = ("winner", "score", "ties", "runner_up", "margin", "low", "high", "n", "ceiling")
SCORE_COLUMNS = ("arm", "score", "gain", "low", "high", "n", "best", "edge")


def winners(
    rows: pd.DataFrame, by: Sequence[str], *, metric: str = "pass_final", seed: int = 0
) -> pd.DataFrame:
    """Return the best arm of every cell.

    Args:
        rows: of `run_sweep`; failed rows do not count.
        by: columns that make a cell.
        metric: column that is highest at the best.
        seed: of the bootstrap.

    Returns:
        One row per cell: the columns of `by`; winner; score (its mean); ties (arms within noise of
        it, comma separated, empty where it wins alone); runner_up; margin (winner minus runner-up,
        paired) with its bootstrap bounds low and high; n (pairs); ceiling (mean under true labels,
        NaN where not run).
    """
    # Groups of a sweep may share a cell, such as the default of every row of the sensitivities.
    rows = where(rows, status="done").drop_duplicates([*by, "arm", "replicate"])
    found = [[*cell, *_winner(part, metric, seed)] for cell, part in groups(rows, by)]
    return pd.DataFrame(found, columns=[*by, *COLUMNS])


def winners_at_best(
    rows: pd.DataFrame,
    by: Sequence[str],
    over: Sequence[str],
    *,
    metric: str = "pass_final",
    seed: int = 0,
) -> pd.DataFrame:
    """Return the best arm of every cell, every arm at its own best of the settings `over`."""
    rows = where(rows, status="done").drop_duplicates([*by, *over, "arm", "replicate"])
    parts = [own_best(part, over, metric) for _, part in groups(rows, by)]
    return winners(pd.concat(parts), by, metric=metric, seed=seed)


def winners_of(rows: pd.DataFrame, names: Sequence[str], seed: int) -> pd.DataFrame:
    """Winners of a sweep: in every cell, and with every arm at its own best step.

    Args:
        rows: of `run_sweep`.
        names: varied settings.
        seed: of the bootstrap.

    Returns:
        As `winners`, the rows at the arms' own best steps last, with `step` NaN.
    """
    table = winners(rows, names, seed=seed)
    rest = [name for name in names if name != CHOSEN]
    if len(rest) == len(names) or not rest:
        return table
    best = winners_at_best(rows, rest, [CHOSEN], seed=seed).assign(**{CHOSEN: np.nan})
    return pd.concat([table, best.reindex(columns=table.columns)], ignore_index=True)


def best_scores(
    rows: pd.DataFrame, by: Sequence[str], name: str, metric: str = "pass_final"
) -> pd.DataFrame:
    """Every arm's score at its own best of one setting, in every cell of others.

    Args:
        rows: of `run_sweep`.
        by: columns that make a cell.
        name: the setting that every arm chooses.
        metric: column that is highest at the best.

    Returns:
        One row per cell and arm: the columns of `by`, arm, score (mean of the metric), gain (mean
        pass@1 gained by training, paired within the replicates) with its 95 % t-interval low and
        high, n, best (the chosen values, comma separated), edge (`smallest` or `largest` where one
        of them ends the grid, else empty).
    """
    rows = where(rows, status="done").drop_duplicates([*by, name, "arm", "replicate"])
    lines = []
    for cell, part in groups(rows, by):
        best = own_best(part, [name], metric)
        sides = {edge.arm: edge.side for edge in edges(best, name, unique(part, name))}
        for (arm,), own in groups(best, ["arm"]):
            gain = estimate(floats(own, "pass_final") - floats(own, "pass_start"))
            chosen = ", ".join(f"{v:g}" for v in sorted(unique(own, name)))
            numbers = [finite_mean(own, metric), gain.mean, gain.low, gain.high, gain.n]
            lines.append([*cell, arm, *numbers, chosen, sides.get(str(arm), "")])
    return pd.DataFrame(lines, columns=[*by, *SCORE_COLUMNS])


def layout(names: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """Return the settings across and down a chart, and those with one small chart per value.

    The step runs across where it was varied, since there every arm also has its own best.
    """
    across = CHOSEN if CHOSEN in names else names[-1]
    down, *rest = [*(name for name in names if name != across), None]
    return across, down, [name for name in rest if name is not None]


def print_winners(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Charts in text, one for every combination of the settings beyond two.

    Args:
        table: from `winners_of`.
        names: varied settings.
    """
    columns, down, rest = layout(names)
    if down is None:
        print(table.to_string(index=False))
        return
    table = table.assign(**{n: table[n].map(_shown) for n in names})
    for cell, part in groups(table, rest):
        panel = ", ".join(f"{n} {v}" for n, v in zip(rest, cell, strict=True))
        print(f"\nBest final pass@1{': ' if panel else ''}{panel}; =n: n other arms within noise")
        print(chart(part, down, columns).to_string())


def chart(table: pd.DataFrame, rows: str, columns: str) -> pd.DataFrame:
    """The winners as a chart in text: `=` marks a tie, with the number of arms that share it.

    Args:
        table: from `winners`, one row per pair of the two settings.
        rows: setting that runs down.
        columns: setting that runs across.
    """
    pairs = zip(table["winner"], table["ties"], strict=True)
    table = table.assign(mark=[_mark(winner, ties) for winner, ties in pairs])
    marks = table.pivot(index=rows, columns=columns, values="mark")
    return marks.reindex(index=unique(table, rows), columns=unique(table, columns))


def _winner(rows: pd.DataFrame, metric: str, seed: int) -> list[object]:
    means = {str(arm): finite_mean(part, metric) for (arm,), part in groups(rows, ["arm"])}
    ceiling = means.pop(CEILING, math.nan)
    # The best first, so that every difference to it is another arm minus the best.
    order = sorted(means, key=lambda arm: means[arm], reverse=True)
    if not order:
        return ["", math.nan, "", "", math.nan, math.nan, math.nan, 0, ceiling]
    by_arm = {arm: where(rows, arm=arm) for arm in order}
    gaps = {arm: _gap(by_arm[arm], by_arm[order[0]], metric, seed) for arm in order[1:]}
    ties = [arm for arm, (shown, _) in gaps.items() if not shown]
    runner, margin = "", Estimate(math.nan, math.nan, math.nan, math.nan, len(by_arm[order[0]]))
    if gaps:
        runner, margin = order[1], gaps[order[1]][1]
    numbers = [-margin.mean, -margin.high, -margin.low, margin.n]
    return [order[0], means[order[0]], ",".join(ties), runner, *numbers, ceiling]


def _gap(arm: pd.DataFrame, best: pd.DataFrame, metric: str, seed: int) -> tuple[bool, Estimate]:
    """Return True if the arm is shown to differ from the best one, and the difference."""
    first, second = (pd.Series(floats(t, metric), t["replicate"].to_numpy()) for t in (arm, best))
    boot = paired_bootstrap(first, second, seed)
    shown = not (boot.within_noise or paired(first, second).within_noise)
    return shown, boot


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "own best" if math.isnan(value) else f"{value:g}"
    return str(value)


def _mark(winner: str, ties: str) -> str:
    return f"{winner} ={len(ties.split(','))}" if ties else winner
