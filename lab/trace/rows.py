"""Rows of a trace: a visit's columns for both worlds, and the check of rows by the schema."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from guard_core import Decision, Votes
from lab.trace.schema import TABLES, VISITS, Arrays, Columns, Table, missing, names

DECIDED = {
    "label": "label",
    "flipped": "flipped",
    "tie": "tied",
    "match_rate": "match_rate",
    "flip_rate": "flip_rate",
    "mean_match_rate": "mean_match_rate",
    "had_competition": "had_competition",
    "route": "route",
    "weight": "weight",
    "beta": "beta",
    "skipped": "skip",
}
"""Column of the visits to the field of `guard_core.Decision` that it holds."""

BEFORE_TRAINING: dict[str, Any] = {
    "flipped": False,
    "flip_rate": 0.0,
    "mean_match_rate": np.nan,
    "had_competition": False,
    "route": 0,
    "weight": 1.0,
    "beta": 0.0,
    "n_minority": 0,
    "skipped": False,
}
"""Values of visit 0, at which the guard takes no decision yet."""

COMPETITIVE_SHARE = 0.25
"""The true answer is competitive while it holds at least this share of the votes."""


def record_dtype(*more: tuple[str, type[np.generic]]) -> np.dtype[np.void]:
    """Return a record type for one visit: the guard's columns, in the schema's dtypes.

    The fields are the extra ones, `n_unparseable`, `n_minority` and the columns of `DECIDED`,
    largest first, so that records are aligned without gaps.
    """
    own = {"n_unparseable", "n_minority", *DECIDED}
    fields = [*more, *((c.name, np.dtype(c.dtype)) for c in VISITS if c.name in own)]
    fields.sort(key=lambda field: -np.dtype(field[1]).itemsize)
    return np.dtype(fields, align=True)


def visit_columns(
    decision: Decision,
    votes: Votes,
    truth: ArrayLike,
    known: ArrayLike = True,
    *,
    before_training: bool = False,
) -> dict[str, Any]:
    """Return the columns of visits that follow from the votes and the guard's decision.

    Those that number the visit (replicate, step, epoch, visit, problem) are left to the caller.

    Args:
        decision: of (..., P) problems, as NumPy arrays.
        votes: counts (..., P, A).
        truth: (..., P) ids of the true answers; negative where no response has given it.
        known: (..., P) bool; False where the problem has no true answer.
        before_training: the votes are those of visit 0.

    Returns:
        Column name to an array (..., P) or to one value for all rows.
    """
    counts, truth_P = np.asarray(votes.counts), np.asarray(truth)
    label_P = np.asarray(decision.label)
    given_P = truth_P >= 0
    at_truth_P = np.take_along_axis(counts, np.maximum(truth_P, 0)[..., None], axis=-1)[..., 0]
    return {
        "n_votes": votes.n_votes,
        "n_unparseable": votes.n_votes - counts.sum(axis=-1),
        "n_minority": np.asarray(decision.minority).sum(axis=-1),
        **{name: getattr(decision, field) for name, field in DECIDED.items()},
        **(BEFORE_TRAINING if before_training else {}),
        **truth_columns(
            np.where(given_P, at_truth_P, 0), votes.n_votes, given_P & (label_P == truth_P), known
        ),
    }


def truth_columns(
    n_right: ArrayLike, n_votes: int, label_correct: ArrayLike, known: ArrayLike = True
) -> dict[str, NDArray[np.generic]]:
    """Return the columns that need the true answer: NaN and False where none is known.

    Args:
        n_right: (...) votes for the true answer.
        label_correct: (...) bool; the label is the true answer.
        known: (...) bool; False where the problem has no true answer.
    """
    share = np.asarray(n_right) / n_votes
    return {
        "label_accuracy": np.where(known, share, np.nan),
        "label_correct": np.logical_and(known, label_correct),
        "correct_competitive": np.logical_and(known, share >= COMPETITIVE_SHARE),
    }


def checked(table: Table, columns: Columns, *, copy: bool = True) -> Arrays:
    """The rows of one call as arrays of the schema's dtypes, in the schema's order.

    Args:
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
