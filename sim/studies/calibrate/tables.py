"""The tables of a calibration, as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from sim.studies.calibrate.error import cell_errors, summary
from sim.studies.calibrate.folder import Part
from sim.studies.calibrate.published import Row

KEY = ("mechanism", "reading", "fit")
Parts = Sequence[tuple[Part, pd.DataFrame]]


def all_predictions(parts: Parts) -> pd.DataFrame:
    """Every simulated row, see `sim.studies.calibrate.prediction`."""
    return _joined((part, table) for part, table in parts)


def all_cells(parts: Parts, rows: Sequence[Row]) -> pd.DataFrame:
    """Every cell, see `cell_errors`."""
    return _joined((part, cell_errors(table, rows)) for part, table in parts)


def all_summaries(parts: Parts, rows: Sequence[Row], seed: int) -> pd.DataFrame:
    """Mean errors, see `summary`."""
    return _joined((part, summary(table, rows, seed)) for part, table in parts)


def all_parameters(parts: Parts) -> pd.DataFrame:
    """What was fitted: row (empty for the mechanism's), name, value."""
    tables = []
    for part, _ in parts:
        found = [("", name, value) for name, value in part.fit.shared.items()]
        for row, own in part.fit.own.items():
            found += [(row, name, value) for name, value in own.items()]
        table = pd.DataFrame(found, columns=["row", "name", "value"])
        tables.append((part, table.astype({"value": float}).assign(loss=part.fit.loss)))
    return _joined(tables)


def _joined(tables: Iterable[tuple[Part, pd.DataFrame]]) -> pd.DataFrame:
    marked = []
    for part, table in tables:
        key = (part.fit.mechanism, part.fit.reading, part.number)
        marked.append(table.assign(**dict(zip(KEY, key, strict=True))))
    joined = pd.concat(marked, ignore_index=True)
    return joined.reindex(columns=[*KEY, *(n for n in joined.columns if n not in KEY)])
