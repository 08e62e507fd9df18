"""A few table operations with one type each: pandas' own may return anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def where(table: pd.DataFrame, rows: pd.Series | NDArray[np.bool_]) -> pd.DataFrame:
    """The rows that a flag chooses, numbered anew."""
    return table.take(np.flatnonzero(np.asarray(rows, bool))).reset_index(drop=True)


def equal(table: pd.DataFrame, name: str, value: object) -> NDArray[np.bool_]:
    """(rows,) bool: the column has this value."""
    return np.asarray(table[name] == value, bool)


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


def mean(table: pd.DataFrame, name: str) -> float:
    """Mean of the finite values of a column; NaN where there are none."""
    values = table[name].to_numpy(np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def done(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep that did not fail."""
    return where(rows, equal(rows, "status", "done"))
