"""A calibration: every mechanism under every reading, fitted several times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.arms import BASELINE, GUARD, MATCHED
from lab.columns import finite_mean, floats, groups, where
from lab.errors import UserError
from lab.files import whole
from lab.progress import Bar
from sim.settings.machine_code import compilation_shown
from sim.settings.options import Loss
from sim.studies.calibrate.error import COPY, SHIFT
from sim.studies.calibrate.fitting import READINGS, Budget, Reading, fit
from sim.studies.calibrate.folder import (
    CELLS,
    PARAMETERS,
    PREDICTIONS,
    SUMMARY,
    TABLE,
    CalibrationFolder,
    Part,
    all_cells,
    all_parameters,
    all_predictions,
    all_summaries,
)
from sim.studies.calibrate.mechanisms import MECHANISMS, Mechanism
from sim.studies.calibrate.prediction import predict
from sim.studies.calibrate.published import CELLS as FATE_CELLS
from sim.studies.calibrate.published import Row

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
    loss: Loss = "points"

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("replicates", "fits"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.seed < _EVALUATION:
            raise UserError(f"seed = {self.seed}: must be in [0, {_EVALUATION - 1}]")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all parts of a folder share."""
        return {
            "rows": [row.name for row in self.rows],
            "replicates": self.replicates,
            "seed": self.seed,
            "loss": self.loss,
            **asdict(self.budget),
        }

    def jobs(self) -> list[tuple[str, Mechanism, Reading, int]]:
        """Return name, mechanism, reading and number of every fit, ordered by number."""
        return [
            (f"{mechanism.name}-{reading}-{number}", mechanism, reading, number)
            for number in range(self.fits)
            for mechanism in self.mechanisms
            for reading in self.readings
        ]


def run_calibration(calibration: Calibration, out: Path, progress: bool = False) -> str:
    """Fit, predict and write the tables into `out`; the same call continues.

    Args:
        calibration: its settings.
        out: a new or empty folder, or one with parts of the same settings.
        progress: show a progress bar.

    Returns:
        The table of errors in Markdown, over all finished parts of the folder.

    Raises:
        UserError: the folder holds something else, or a run failed.
    """
    folder = CalibrationFolder(out, calibration.settings)
    jobs = [job for job in calibration.jobs() if not folder.has(job[0])]
    each = len(calibration.rows) * (calibration.budget.runs_per_row + 1)
    bar = Bar(total=each * len(jobs), unit="run", disable=not progress)
    with bar, compilation_shown(bar.set_postfix_str):
        for number, job in enumerate(jobs):
            bar.set_description(job[0])
            folder.write(job[0], *_job(calibration, *job[1:], bar.update))
            # Nelder-Mead may stop before its budget is spent.
            bar.update(each * (number + 1) - bar.n)
    return _write_tables(calibration, folder)


def _job(
    calibration: Calibration,
    mechanism: Mechanism,
    reading: Reading,
    number: int,
    tick: Callable[[], object],
) -> tuple[Part, pd.DataFrame]:
    c = calibration
    # Further apart than the seeds of two calibrations, so that neighbouring seeds share no fit.
    seed = c.seed + number * 2 * _EVALUATION
    fitted = fit(mechanism, c.rows, reading, seed, c.budget, tick, c.loss)
    table = predict(mechanism, fitted, c.rows, c.replicates, seed + _EVALUATION, tick)
    return Part(c.settings, number, fitted), table


def _write_tables(calibration: Calibration, folder: CalibrationFolder) -> str:
    parts = folder.read()
    rows = calibration.rows
    made = {
        PREDICTIONS: all_predictions(parts),
        CELLS: all_cells(parts, rows),
        SUMMARY: all_summaries(parts, rows, calibration.seed),
        PARAMETERS: all_parameters(parts),
    }
    for name, table in made.items():
        with whole(folder.path / name) as file:
            table.to_parquet(file, index=False)
    text = error_table(made[SUMMARY], len(rows))
    with whole(folder.path / TABLE) as file:
        file.write_text(text, encoding="utf-8")
    return text


def error_table(summaries: pd.DataFrame, n_rows: int) -> str:
    """Mean error of every kind as Markdown: over the fits, and the widest interval of any fit."""
    heads = ["mechanism", "reading", "fitted / cells", *_HEADS.values()]
    lines = [heads, ["---"] * len(heads)]
    for (mechanism, reading), part in groups(summaries, ["mechanism", "reading"]):
        fitted = MECHANISMS[mechanism]
        free = len(fitted.parameters) + len(fitted.population) * n_rows
        shown = [_interval(where(part, kind=kind), kind) for kind in _HEADS]
        lines.append([mechanism, reading, f"{free} / {len(FATE_CELLS) * n_rows}", *shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _interval(part: pd.DataFrame, kind: str) -> str:
    error = f"{finite_mean(part, 'error'):.2f}"
    if kind == COPY:
        return error
    return f"{error} [{floats(part, 'low').min():.2f}, {floats(part, 'high').max():.2f}]"
