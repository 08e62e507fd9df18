"""Fates of problems: from right to wrong, from wrong to right, or neither.

docs/method.md, section 10; paper appendix A. The paper's table is neither exclusive nor
exhaustive, so the first category that matches counts, and what matches none is `Unclassified`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from guard_core.config import ROUNDING
from lab.base.columns import Bools, Floats, Ints, floats, ints, require
from lab.base.errors import UserError

FATES = (
    "Stable Always Right",
    "Degraded",
    "Learned",
    "Marginal Degraded",
    "Marginal Stable",
    "Always Wrong",
    "Unclassified",
)
"""Categories in the order in which they are tried."""
LOST = ("Degraded", "Marginal Degraded")
"""Problems that training made worse: the fates that TotalDeg counts."""

FIRST, LAST = 3, 5
"""Visits that the initial and the final label accuracy are means of."""
MIN_VISITS = FIRST + LAST
"""With fewer visits the two windows would overlap."""


class Histories(NamedTuple):
    """Visits of training sorted by replicate, problem and visit, and where each history begins."""

    order: NDArray[np.intp]
    """(rows,) row of the table at each place."""
    start: NDArray[np.intp]
    """(histories,) first place of each history."""
    length: NDArray[np.intp]
    """(histories,) visits of each history."""

    @property
    def number(self) -> NDArray[np.intp]:
        """(rows,) number of the history at each place, from 0."""
        return np.repeat(np.arange(len(self.start)), self.length)

    @property
    def visit(self) -> NDArray[np.intp]:
        """(rows,) visits of the history before each place."""
        return np.arange(len(self.order)) - np.repeat(self.start, self.length)


def fates(visits: pd.DataFrame, *, partial: bool = False) -> pd.DataFrame:
    """The fate of every problem in every replicate.

    Args:
        visits: a trace's visits. Visit 0, before training, is left out, and so are problems whose
            true answer is not known (`label_accuracy` is NaN).
        partial: leave out replicates that cannot have fates yet, maybe all; else refuse the table.

    Returns:
        One row per replicate and problem: `replicate`, `problem`, `ila` (mean label accuracy of
        the first three visits), `fla` (of the last five), `fate` (ordered categories `FATES`).

    Raises:
        UserError: a column is missing or a visit is there twice; unless `partial`, also where no
            true answer is known or a problem has fewer than eight visits.
    """
    require(visits, ("replicate", "problem", "visit", "label_accuracy"), "fates")
    accuracy = floats(visits, "label_accuracy")
    known = np.isfinite(accuracy)
    past = histories(visits, known)
    first_rows = past.order[past.start]
    if partial:
        replicate = ints(visits, "replicate")[first_rows]
        kept = ~np.isin(replicate, replicate[past.length < MIN_VISITS])
        past = Histories(past.order, past.start[kept], past.length[kept])
        first_rows = first_rows[kept]
    elif not known.any():
        raise UserError("fates: no label accuracy is known; they need the true answers")
    elif not len(first_rows):
        raise UserError(f"fates: no visit of training, {MIN_VISITS} are needed; train longer")
    elif (fewest := past.length.min()) < MIN_VISITS:
        row = visits.iloc[first_rows[past.length.argmin()]]
        raise UserError(
            f"fates: replicate {row['replicate']:.0f}, problem {row['problem']:.0f} has "
            f"{fewest} visits, at least {MIN_VISITS} are needed; train longer"
        )
    accuracy = accuracy[past.order]
    ila = accuracy[past.start[:, None] + np.arange(FIRST)].mean(axis=1)
    end = past.start + past.length
    fla = accuracy[end[:, None] - 1 - np.arange(LAST)].mean(axis=1)
    codes: Any = classify(ila, fla)
    fate = pd.Categorical.from_codes(codes, pd.Index(FATES), ordered=True)
    keys = {name: visits[name].to_numpy()[first_rows] for name in ("replicate", "problem")}
    return pd.DataFrame({**keys, "ila": ila, "fla": fla, "fate": fate})


def classify(ila: Floats, fla: Floats) -> NDArray[np.int8]:
    """Place in `FATES` of each pair of initial and final label accuracy, any shape."""
    ila, fla = np.asarray(ila, np.float64), np.asarray(fla, np.float64)

    def below(value: Floats, bound: Floats | float) -> Bools:
        return value < bound - ROUNDING

    hard, middle = below(ila, 0.15), ~below(ila, 0.15) & below(ila, 0.7)
    fell = below(fla, ila - 0.15)
    conditions = [
        ~below(ila, 0.7) & ~below(fla, 0.6),
        ~below(ila, 0.5) & below(fla, ila - 0.2),
        hard & ~below(fla, 0.5),
        middle & fell,
        middle & ~fell,
        hard & below(fla, 0.5),
    ]
    return np.select(conditions, range(len(conditions)), len(conditions)).astype(np.int8)


def fate_shares(fates: pd.DataFrame) -> pd.DataFrame:
    """Shares of the fates in percent of the problems, one row per replicate.

    Returns:
        Indexed by replicate, one column per category, then `TotalDeg` (Degraded and Marginal
        Degraded) and `L/D` (Learned by Degraded; NaN where nothing degraded).
    """
    replicates, place = np.unique(ints(fates, "replicate"), return_inverse=True)
    cell = place * len(FATES) + pd.Categorical(fates["fate"], categories=list(FATES)).codes
    counts = np.bincount(cell, minlength=len(replicates) * len(FATES)).reshape(-1, len(FATES))
    shares = 100.0 * counts / counts.sum(axis=1, keepdims=True)
    table = pd.DataFrame(shares, pd.Index(replicates, name="replicate"), list(FATES))
    table["TotalDeg"] = table["Degraded"] + table["Marginal Degraded"]
    degraded = floats(table, "Degraded")
    # 0 / 0 and x / 0 alike are undefined: a ratio of nothing is never infinite.
    table["L/D"] = floats(table, "Learned") / np.where(degraded > 0, degraded, np.nan)
    return table


def of_fate(visits: pd.DataFrame, fates: pd.DataFrame, wanted: Collection[str]) -> Bools:
    """(rows of visits,) true where the problem has a fate of `FATES` that is wanted."""
    chosen = fates["fate"].isin(list(wanted)).to_numpy()
    width = 1 + max(ints(visits, "problem").max(initial=0), ints(fates, "problem").max(initial=0))
    # A table to look up in: much faster than a search among sorted numbers.
    return np.isin(_history_id(visits, width), _history_id(fates, width)[chosen], kind="table")


def histories(visits: pd.DataFrame, keep: Bools | bool = True) -> Histories:
    """Sort the visits of training by replicate, problem and visit.

    A UserError where one is there twice.

    Args:
        keep: (rows,) rows to look at, all if left out; visit 0 is never among them.
    """
    visit = ints(visits, "visit")
    rows = np.flatnonzero((visit > 0) & keep)
    if not len(rows):
        return Histories(rows, rows, rows)
    history = _history_id(visits, 1 + ints(visits, "problem").max())[rows]
    visit = visit[rows]
    # One integer key sorts several times faster than three.
    key = history * (1 + visit.max()) + visit
    # Histories are written in order, of which a stable sort makes use.
    order = np.argsort(key, kind="stable")
    key, history = key[order], history[order]
    if (twice := np.flatnonzero(key[1:] == key[:-1])).size:
        row = visits.iloc[rows[order[twice[0]]]]
        raise UserError(
            f"visits: replicate {row['replicate']:.0f}, problem {row['problem']:.0f} has visit "
            f"{row['visit']:.0f} twice; keep one run per folder"
        )
    start = np.flatnonzero(np.diff(history, prepend=-1))
    return Histories(rows[order], start, np.diff(start, append=len(order)))


def _history_id(table: pd.DataFrame, width: int) -> Ints:
    return ints(table, "replicate") * width + ints(table, "problem")
