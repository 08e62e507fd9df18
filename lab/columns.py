"""Columns of a table as plain arrays, and the names of those that it lacks."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool]


def require(table: pd.DataFrame, columns: Collection[str], what: str) -> None:
    """Name the columns that a table lacks.

    Raises:
        UserError: a column is missing.
    """
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
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
    """(n_groups,) mean of each group's finite values, NaN for a group without any.

    Args:
        values: (rows,) floats.
        group: (rows,) group of each row, 0 to n_groups-1.
        n_groups: number of groups.
    """
    finite = np.isfinite(values)
    if finite.all():
        finite = slice(None)  # a view in place of two copies
    counts = np.bincount(group[finite], minlength=n_groups)
    sums = np.bincount(group[finite], values[finite], minlength=n_groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
