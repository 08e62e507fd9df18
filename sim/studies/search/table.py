"""The result of a search: every candidate's scores, and its gain over the first arm."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.columns import finite_mean, groups, unique
from lab.stats.paired import LEVEL, differences, estimate


def scores(rows: pd.DataFrame, lrs: Sequence[float]) -> pd.DataFrame:
    """Return the scores of candidates that were run at every learning rate.

    Args:
        rows: of `run_search`.
        lrs: the learning rates.

    Returns:
        One row per candidate, by its title: final pass@1 in percent at every learning rate (mean
        over its replicates), mean and minimum of them, and replicates.
    """
    if rows.empty:
        return pd.DataFrame(columns=[*lrs, "mean", "minimum", "replicates"])
    table = rows.pivot_table(index="candidate", columns="lr", values="pass_final", sort=False)
    table = table.reindex(columns=list(lrs)).dropna()
    counts = rows.groupby("candidate")["replicate"].nunique()
    return table.assign(
        mean=table.mean(axis=1), minimum=table.min(axis=1), replicates=counts.reindex(table.index)
    )


def results(rows: pd.DataFrame, lrs: Sequence[float], objective: str) -> pd.DataFrame:
    """Return the table of a search, those of the most replicates and the best score first.

    `gain` is the mean over the learning rates minus that of the first candidate, paired by
    replicate. Its t-interval `low` to `high` holds for all candidates at once with 95 %
    (Bonferroni's correction), also for those that were chosen because they were best.

    Args:
        rows: of `run_search`.
        lrs: the learning rates.
        objective: column of `scores` to sort by.
    """
    table = scores(rows, lrs)
    n_candidates = len(unique(rows, "candidate"))
    level = 1 - (1 - LEVEL) / max(1, n_candidates - 1)
    means = {str(name): _by_replicate(part) for (name,), part in groups(rows, ["candidate"])}
    first = means[str(rows["candidate"].iloc[0])]
    gains = [estimate(differences(means[str(name)], first), level) for name in table.index]
    table["gain"] = [gain.mean for gain in gains]
    table["low"], table["high"] = [gain.low for gain in gains], [gain.high for gain in gains]
    return table.sort_values(["replicates", objective], ascending=False, kind="stable")


def _by_replicate(rows: pd.DataFrame) -> pd.Series:
    """Mean over the learning rates of final pass@1, by replicate."""
    parts = {r: finite_mean(part, "pass_final") for (r,), part in groups(rows, ["replicate"])}
    return pd.Series(parts)
