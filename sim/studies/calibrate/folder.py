"""The folder of a calibration: one part per (mechanism, reading, fit), and the tables of all parts.

Parts are written whole, so the same command continues after an interruption, and two commands with
other mechanisms may fill one folder at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.errors import UserError
from lab.files import whole
from sim.studies.calibrate.error import cell_errors, summary
from sim.studies.calibrate.fitting import Fit
from sim.studies.calibrate.published import Row

PARTS = "parts"
PREDICTIONS = "predictions.parquet"
CELLS = "cells.parquet"
SUMMARY = "summary.parquet"
PARAMETERS = "parameters.parquet"
TABLE = "table.md"

KEY = ("mechanism", "reading", "fit")


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A finished fit."""

    settings: dict[str, Any]
    """Settings that all parts of a folder share."""
    number: int
    """Of the fit, from 0."""
    fit: Fit


class CalibrationFolder:
    """Finished parts on disk."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Make the folder, or continue in it.

        Args:
            path: new, empty, or with parts of the same settings.
            settings: plain values.

        Raises:
            UserError: the folder holds something else, or cannot be made.
        """
        self.path, self.settings = path, settings
        ours = (path / PARTS).is_dir()
        if path.exists() and not ours and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path}: exists and holds no calibration; choose another folder")
        try:
            (path / PARTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path}: cannot be made ({error.strerror})") from error
        for file in sorted((path / PARTS).glob("*.json")):
            self._check(file)

    def has(self, name: str) -> bool:
        """Return True if the part is finished."""
        return self._json(name).exists()

    def write(self, name: str, part: Part, predictions: pd.DataFrame) -> None:
        """Add a part; the JSON file comes last and says that it is complete."""
        with whole(self._parquet(name)) as file:
            predictions.to_parquet(file, index=False)
        with whole(self._json(name)) as file:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(part), indent=1))

    def read(self) -> list[tuple[Part, pd.DataFrame]]:
        """All finished parts by name.

        Raises:
            UserError: a part cannot be read, or has other settings.
        """
        files = sorted((self.path / PARTS).glob("*.json"))
        return [(self._check(f), pd.read_parquet(self._parquet(f.stem))) for f in files]

    def _check(self, file: Path) -> Part:
        try:
            part = msgspec.json.decode(file.read_bytes(), type=Part)
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(f"{file}: cannot be read ({error}); delete it to fit again") from error
        for name, value in self.settings.items():
            if part.settings.get(name) != value:
                raise UserError(
                    f"{file}: was made with {name} = {part.settings.get(name)}, not {value}; "
                    "choose another folder"
                )
        return part

    def _json(self, name: str) -> Path:
        return self.path / PARTS / f"{name}.json"

    def _parquet(self, name: str) -> Path:
        return self.path / PARTS / f"{name}.parquet"


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
    """Every fitted number: row (empty for those of the mechanism), name, value."""
    tables = []
    for part, _ in parts:
        numbers = [("", name, value) for name, value in part.fit.shared.items()]
        for row, own in part.fit.own.items():
            numbers += [(row, name, value) for name, value in own.items()]
        table = pd.DataFrame(numbers, columns=["row", "name", "value"])
        tables.append((part, table.astype({"value": float}).assign(loss=part.fit.loss)))
    return _joined(tables)


def _joined(tables: Iterable[tuple[Part, pd.DataFrame]]) -> pd.DataFrame:
    marked = []
    for part, table in tables:
        key = (part.fit.mechanism, part.fit.reading, part.number)
        marked.append(table.assign(**dict(zip(KEY, key, strict=True))))
    joined = pd.concat(marked, ignore_index=True)
    return joined.reindex(columns=[*KEY, *(n for n in joined.columns if n not in KEY)])
