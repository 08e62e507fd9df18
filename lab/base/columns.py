"""Columns of a table as plain arrays, rows chosen by their values, and tables of texts.

pandas' own operations may return anything; these have one type each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.base.errors import UserError

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool]


def require(table: pd.DataFrame, columns: Collection[str], what: str) -> None:
    """Refuse a table that lacks columns; the error names them."""
    if lacking := [name for name in columns if name not in table.columns]:
        raise UserError(f"{what}: missing columns {', '.join(lacking)}; give a trace's table")


def floats(table: pd.DataFrame, name: str) -> Floats:
    """A column as (rows,) floats; flags become 0 and 1."""
    return table[name].to_numpy(np.float64)


def ints(table: pd.DataFrame, name: str) -> Ints:
    """A column as (rows,) integers."""
    return table[name].to_numpy(np.int64)


def flags(table: pd.DataFrame, name: str) -> Bools:
    """A column as (rows,) bool."""
    return table[name].to_numpy(np.bool)


def group_mean(values: Floats, group: NDArray[np.intp], n_groups: int) -> Floats:
    """(n_groups,) mean of each group's finite values, NaN without any; groups count from 0."""
    finite = np.isfinite(values)
    if finite.all():
        finite = slice(None)  # a view in place of two copies
    counts = np.bincount(group[finite], minlength=n_groups)
    sums = np.bincount(group[finite], values[finite], minlength=n_groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def select(table: pd.DataFrame, chosen: pd.Series | Bools) -> pd.DataFrame:
    """The rows with a true flag, numbered from 0."""
    return table.take(np.flatnonzero(np.asarray(chosen, bool))).reset_index(drop=True)


def where(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows whose columns have these values, numbered from 0; NaN equals NaN."""
    chosen = np.ones(len(table), bool)
    for name, value in values.items():
        column = table[name]
        chosen &= np.asarray(column.isna() if value != value else column == value, bool)
    return select(table, chosen)


def groups(
    table: pd.DataFrame, names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Values of some columns and the rows that have them, in order of appearance.

    NaN is a value like others; without columns all rows are one group.
    """
    if not names:
        yield (), table
        return
    for key, part in table.groupby(list(names), sort=False, dropna=False):
        assert isinstance(key, tuple)
        yield key, pd.DataFrame(part)


def unique(table: pd.DataFrame, name: str) -> list[Any]:
    """The different values of a column, in order of appearance."""
    return list(dict.fromkeys(table[name].tolist()))


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, an apostrophe before each text that a spreadsheet would compute."""
    texts = table.select_dtypes(exclude=["number", "bool"])
    inert = {
        str(name): [f"'{cell}" if str(cell).startswith(_FORMULA) else cell for cell in texts[name]]
        for name in texts
    }
    table.assign(**inert).to_csv(path, index=False, errors="backslashreplace")


def finite_mean(table: pd.DataFrame, name: str) -> float:
    """Mean of the finite values of a column; NaN where there are none."""
    values = floats(table, name)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings."""

    head: list[str]
    rows: list[list[str]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table for a terminal, without columns that have no value."""
        columns = zip(self.head, *self.rows, strict=True)
        kept = [column for column in columns if not self.rows or any(column[1:])]
        width = [max(map(len, column)) for column in kept]
        for row in zip(*kept, strict=True):
            cells = [row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]
            yield "  ".join(cells).rstrip()

    def markdown(self) -> Iterator[str]:
        """Yield the lines of a table in Markdown."""
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            yield f"| {' | '.join(row)} |"
