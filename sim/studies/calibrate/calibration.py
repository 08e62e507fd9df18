"""A calibration: every mechanism under every reading, fitted several times, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.base.arms import BASELINE, GUARD, MATCHED
from lab.base.columns import finite_mean, floats, groups, where
from lab.base.errors import UserError
from lab.base.files import whole_folder
from lab.progress import Bar
from sim.settings.machine_code import compilation_shown
from sim.studies.calibrate.fitting import READINGS, Budget, Fit, Reading, fit
from sim.studies.calibrate.mechanisms import MECHANISMS, Mechanism
from sim.studies.calibrate.prediction import COPY, SHIFT, cell_errors, predict, summary
from sim.studies.calibrate.published import CELLS, Row

TABLE = "table.md"
KEY = ("mechanism", "reading", "fit")
_HEADS = {
    BASELINE: "TTRL row (fitted)",
    GUARD: "guard row: model",
    SHIFT: "TTRL row + model's change",
    MATCHED: "matched effort",
    COPY: "copy of TTRL row",
}
_EVALUATION = 1_000_000
"""Added to the seed for the prediction, whose draws no fit has then used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Settings of a calibration."""

    rows: tuple[Row, ...]
    mechanisms: tuple[Mechanism, ...]
    readings: tuple[Reading, ...] = READINGS
    budget: Budget
    replicates: int = 16
    """Runs per row and arm of the prediction."""
    fits: int = 2
    """Fits with seeds of their own."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("replicates", "fits"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.seed < _EVALUATION:
            raise UserError(f"seed = {self.seed}: must be in [0, {_EVALUATION - 1}]")


Part = tuple[int, Fit, pd.DataFrame]
"""Number of a fit, the fit, and its predictions."""


def run_calibration(calibration: Calibration, out: Path, progress: bool = False) -> str:
    """Fit, predict and write the tables.

    Args:
        out: a new or empty folder, which is written at the end: predictions, cells, summary and
            parameters as Parquet, and the table of errors.

    Returns:
        The table of errors in Markdown.

    Raises:
        UserError: the folder holds something, or a run failed.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty; choose another folder")
    c = calibration
    jobs = [(n, m, r) for n in range(c.fits) for m in c.mechanisms for r in c.readings]
    bar = Bar(jobs, "calibrate", len(jobs), unit="fit", disable=not progress)
    with compilation_shown(bar.set_postfix_str):
        parts = [_part(c, *job) for job in bar]
    tables = {
        "predictions": _joined(parts, lambda part: part[2]),
        "cells": _joined(parts, lambda part: cell_errors(part[2], c.rows)),
        "summary": _joined(parts, lambda part: summary(part[2], c.rows, c.seed)),
        "parameters": _joined(parts, _parameters),
    }
    text = error_table(tables["summary"], len(c.rows))
    with whole_folder(out) as place:
        for name, table in tables.items():
            table.to_parquet(place / f"{name}.parquet", index=False)
        (place / TABLE).write_text(text, encoding="utf-8")
    return text


def _part(c: Calibration, number: int, mechanism: Mechanism, reading: Reading) -> Part:
    # Further apart than the seeds of two calibrations, so that neighbouring seeds share no fit.
    seed = c.seed + number * 2 * _EVALUATION
    fitted = fit(mechanism, c.rows, reading, seed, c.budget)
    return number, fitted, predict(mechanism, fitted, c.rows, c.replicates, seed + _EVALUATION)


def _parameters(part: Part) -> pd.DataFrame:
    """Every fitted number: row (empty for those of the mechanism), name, value, loss."""
    _, fitted, _ = part
    numbers = [("", name, value) for name, value in fitted.shared.items()]
    for row, own in fitted.own.items():
        numbers += [(row, name, value) for name, value in own.items()]
    table = pd.DataFrame(numbers, columns=["row", "name", "value"])
    return table.astype({"value": float}).assign(loss=fitted.loss)


def _joined(parts: Sequence[Part], table: Callable[[Part], pd.DataFrame]) -> pd.DataFrame:
    """The tables of all parts, by mechanism, reading and fit."""
    order = sorted(parts, key=lambda part: (part[1].mechanism, part[1].reading, part[0]))
    marked = []
    for part in order:
        key = (part[1].mechanism, part[1].reading, part[0])
        marked.append(table(part).assign(**dict(zip(KEY, key, strict=True))))
    joined = pd.concat(marked, ignore_index=True)
    return joined.reindex(columns=[*KEY, *(n for n in joined.columns if n not in KEY)])


def error_table(summaries: pd.DataFrame, n_rows: int) -> str:
    """Mean error of every kind as Markdown: over the fits, and the widest interval of any fit."""
    heads = ["mechanism", "reading", "fitted / cells", *_HEADS.values()]
    lines = [heads, ["---"] * len(heads)]
    for (mechanism, reading), part in groups(summaries, ["mechanism", "reading"]):
        fitted = MECHANISMS[mechanism]
        free = len(fitted.parameters) + len(fitted.population) * n_rows
        shown = [_interval(where(part, kind=kind), kind) for kind in _HEADS]
        lines.append([mechanism, reading, f"{free} / {len(CELLS) * n_rows}", *shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _interval(part: pd.DataFrame, kind: str) -> str:
    error = f"{finite_mean(part, 'error'):.2f}"
    if kind == COPY:
        return error
    return f"{error} [{floats(part, 'low').min():.2f}, {floats(part, 'high').max():.2f}]"
