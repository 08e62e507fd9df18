"""Rows against the schema: what a run writes and what a reader finds, or a refusal."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.trace.schema import TABLES, Arrays, Columns, Table, missing, names


def checked(table: Table, columns: Columns, *, copy: bool = True) -> Arrays:
    """The rows of one call as arrays of the schema's dtypes, in the schema's order.

    Args:
        table: which table.
        columns: (rows,) arrays of one length; a scalar stands for every row.
        copy: False where the caller never changes the arrays again; those of the right dtype are
            then taken as they are.

    Raises:
        ValueError: a column is missing, unknown, of a wrong kind or length, or out of range.
    """
    kinds = _dtypes(table, frozenset(columns))
    rows = {name: np.asarray(columns[name]) for name in kinds}
    n_rows = _row_count(table, rows)
    for name, wanted in kinds.items():
        values = rows[name]
        differs = values.dtype != wanted
        if differs:
            _check_cast(f"{table}: {name}", values, wanted)
        if differs or copy:
            values = values.astype(wanted)
        rows[name] = np.full(n_rows, values) if values.ndim == 0 else values
    _check_start(table, rows)
    return rows


def check_values(table: Table, rows: pd.DataFrame) -> None:
    """Refuse rows with values that no run writes.

    Args:
        table: which table.
        rows: its columns, in the schema's types.

    Raises:
        ValueError: naming the column and the value.
    """
    if rows.empty:
        return
    for column in TABLES[table]:
        if column.name in rows and column.dtype not in ("bool", "str"):
            low, high = column.bounds
            values = rows[column.name].to_numpy()
            least, most = np.fmin.reduce(values), np.fmax.reduce(values)
            if least < low or most > high:
                bad = least if least < low else most
                raise ValueError(f"{column.name} has a value of {bad:g}")


@cache
def _dtypes(table: Table, given: frozenset[str]) -> dict[str, np.dtype]:
    """Name to dtype of the given columns, in the schema's order."""
    lacking = missing(table, given)
    if lacking:
        raise ValueError(f"{table}: missing columns {', '.join(lacking)}")
    unknown = sorted(given - set(names(table)))
    if unknown:
        raise ValueError(f"{table}: {', '.join(unknown)}: not in the schema (lab/trace/schema.py)")
    return {c.name: np.dtype(c.dtype) for c in TABLES[table] if c.name in given}


def _row_count(table: Table, raw: Arrays) -> int:
    shapes = {values.shape for values in raw.values()} - {()}
    if any(len(shape) > 1 for shape in shapes):
        bad = next(name for name, values in raw.items() if values.ndim > 1)
        raise ValueError(f"{table}: {bad}: shape {raw[bad].shape}, must be one-dimensional")
    lengths = sorted(length for (length,) in shapes)
    if len(lengths) > 1:
        raise ValueError(f"{table}: columns of different lengths {lengths}")
    return lengths[0] if lengths else 1


def _check_cast(where: str, values: NDArray[np.generic], wanted: np.dtype) -> None:
    fits = {"b": "b", "i": "iu", "f": "iuf", "U": "U"}[wanted.kind]
    if values.dtype.kind not in fits:
        raise ValueError(f"{where}: {values.dtype}, must be {wanted}")
    if wanted.kind == "i" and values.size and not np.can_cast(values.dtype, wanted):
        limits = np.iinfo(wanted)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise ValueError(f"{where}: value outside {wanted}")


def _check_start(table: Table, rows: Arrays) -> None:
    """Step, epoch and visit are 0 together, before training, and only there."""
    places = [name for name in ("step", "epoch", "visit") if name in rows]
    least = min(rows[name].min(initial=1) for name in places)
    if least > 0:
        return
    start = rows["step"] == 0
    if table == "steps" and start.any():
        raise ValueError("steps: step 0 is before training, the first batch is step 1")
    if least < 0:
        raise ValueError(f"{table}: step, epoch and visit cannot be negative")
    if table != "evals" and any(((rows[n] == 0) != start).any() for n in places):
        raise ValueError(
            f"{table}: step, epoch and visit must be 0 together (before training) and from 1 in it"
        )
