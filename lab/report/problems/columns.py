"""One row per problem: what became of it under each arm, over the replicates."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from lab.columns import Floats, Ints, flags, floats, group_mean, ints
from lab.measures.fate import FATES, FIRST, LAST, Histories, fate_codes, histories
from lab.report.content.digest import ReportedComparison
from lab.report.problems.packing import Array

WORST_FIRST = (
    "Degraded",
    "Marginal Degraded",
    "Always Wrong",
    "Unclassified",
    "Marginal Stable",
    "Learned",
    "Stable Always Right",
)
"""Fates in the order in which the table sorts them."""
_SHARE_DIGITS = 3


def problem_columns(
    world: ReportedComparison, replicates: Mapping[int, Collection[int]]
) -> dict[str, Array]:
    """All problems under all arms.

    Args:
        world: the comparison.
        replicates: place of an arm to the replicates whose own numbers are wanted.

    Returns:
        `problem` (N,) and, for the arm at place k, (N,) each: `k.fate`, the commonest fate over
        the replicates (place in `WORST_FIRST` plus one, the worse at equal counts, 0 where there
        is none), `k.same` replicates share it of `k.known`; means over replicates: `k.ila`,
        `k.fla`, `k.first` and `k.last` (match rate of the first three and last five visits, or of
        those made so far), `k.flips` (label changes in training), NaN where not known. `k.fate.r`
        and so on are those of replicate r alone. Shares are rounded to 0.001 and flips to 0.1.
    """
    arms = world.comparison.arms
    traces = world.comparison.traces
    problem = np.unique(np.concatenate([ints(traces[arm].visits, "problem") for arm in arms]))
    columns: dict[str, Array] = {"problem": problem}
    for place, arm in enumerate(arms):
        rows = _rows(traces[arm].visits)
        found = world.comparison.fates(arm)
        fates = None if found.empty else _coded(found)
        own = _summary(rows, fates, problem)
        for r in replicates.get(place, ()):
            one = None if fates is None else _of(fates, r)
            single = _summary(_of(rows, r), one, problem)
            own |= {f"{n}.{r}": v for n, v in single.items() if n not in ("same", "known")}
        columns |= {f"{place}.{name}": values for name, values in own.items()}
    return columns


def problem_ids(world: ReportedComparison) -> list[str] | None:
    """The problems' own names, where the runs noted them and agree; not escaped."""
    noted = [run.extra.get("problem_ids") for run in world.comparison.manifests]
    first = noted[0]
    agree = isinstance(first, list) and all(ids == first for ids in noted)
    return [str(name) for name in first] if agree and first else None


def redrawn(world: ReportedComparison) -> bool:
    """Every replicate has problems of its own, so that a problem's number means nothing across."""
    return len(world.comparison.pairs) > 1 and any(
        run.config.get("fixed_population") is False for run in world.comparison.manifests
    )


def _rows(visits: pd.DataFrame) -> pd.DataFrame:
    """One row per replicate and problem: its match rates and flips."""
    found = histories(visits)
    rate = floats(visits, "match_rate")[found.order]
    flipped = flags(visits, "flipped")[found.order].astype(np.float64)
    rows = found.order[found.start]
    return pd.DataFrame(
        {
            "replicate": ints(visits, "replicate")[rows],
            "problem": ints(visits, "problem")[rows],
            "first": _window_mean(rate, found.start, found, FIRST),
            "last": _window_mean(rate, np.maximum(found.start, found.last - LAST + 1), found, LAST),
            "flips": np.add.reduceat(flipped, found.start) if len(rows) else flipped,
        }
    )


def _window_mean(values: Floats, first: Ints, found: Histories, length: int) -> Floats:
    """(histories,) mean over a window from `first` on, or over what the history has of it."""
    place = first[:, None] + np.arange(length)
    there = place <= found.last[:, None]
    sums = np.where(there, values[np.minimum(place, found.last[:, None])], 0.0).sum(axis=1)
    return sums / there.sum(axis=1)


def _coded(fates: pd.DataFrame) -> pd.DataFrame:
    """The fates by their place in `WORST_FIRST`."""
    rank = np.array([WORST_FIRST.index(name) for name in FATES])
    return fates.assign(code=rank[fate_codes(fates)])


def _of(rows: pd.DataFrame, replicate: int) -> pd.DataFrame:
    return rows.take(np.flatnonzero(ints(rows, "replicate") == replicate))


def _summary(rows: pd.DataFrame, fates: pd.DataFrame | None, problem: Ints) -> dict[str, Array]:
    n, place = len(problem), np.searchsorted(problem, ints(rows, "problem"))
    columns: dict[str, Array] = {
        name: group_mean(floats(rows, name), place, n).round(digits)
        for name, digits in (("first", _SHARE_DIGITS), ("last", _SHARE_DIGITS), ("flips", 1))
    }
    if fates is None:
        return columns | {"fate": np.zeros(n, np.int64)}
    place = np.searchsorted(problem, ints(fates, "problem"))
    cell = place * len(FATES) + ints(fates, "code")
    counts = np.bincount(cell, minlength=n * len(FATES)).reshape(n, len(FATES))
    known = counts.sum(axis=1)
    for name in ("ila", "fla"):
        columns[name] = group_mean(floats(fates, name), place, n).round(_SHARE_DIGITS)
    fate = np.where(known > 0, 1 + counts.argmax(axis=1), 0)
    return columns | {"fate": fate, "same": counts.max(axis=1), "known": known}
