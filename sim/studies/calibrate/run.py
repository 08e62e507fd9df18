"""A whole calibration: every mechanism under every reading, fitted several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from lab.errors import UserError
from lab.files import whole
from sim.studies.calibrate import folder as files
from sim.studies.calibrate import tables
from sim.studies.calibrate.error import Loss
from sim.studies.calibrate.fitting import Budget, fit
from sim.studies.calibrate.folder import CalibrationFolder, Part
from sim.studies.calibrate.markdown import report
from sim.studies.calibrate.mechanisms import Mechanism
from sim.studies.calibrate.prediction import predict
from sim.studies.calibrate.published import Row
from sim.studies.calibrate.readings import READINGS, Reading

_EVALUATION = 1_000_000
"""Added to the seed for the prediction, so that no fit has seen its draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What to fit and how."""

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
        """What all parts of a folder must share."""
        return {
            "rows": [row.name for row in self.rows],
            "replicates": self.replicates,
            "seed": self.seed,
            "loss": self.loss,
            **asdict(self.budget),
        }

    def jobs(self) -> list[tuple[str, Mechanism, Reading, int]]:
        """Name, mechanism, reading and number of every fit; whole sets of fits come first."""
        return [
            (f"{mechanism.name}-{reading}-{number}", mechanism, reading, number)
            for number in range(self.fits)
            for mechanism in self.mechanisms
            for reading in self.readings
        ]


def run_calibration(calibration: Calibration, out: Path, progress: bool = False) -> str:
    """Fit, predict and write the tables into `out`; the same call continues.

    Args:
        calibration: what to do.
        out: a new or empty folder, or one with parts of the same settings.
        progress: show a progress bar.

    Returns:
        The Markdown tables, over all finished parts of the folder.

    Raises:
        UserError: the folder holds something else, or a run failed.
    """
    folder = CalibrationFolder(out, calibration.settings)
    jobs = [job for job in calibration.jobs() if not folder.has(job[0])]
    each = len(calibration.rows) * (calibration.budget.runs_per_row + 1)
    with tqdm(total=each * len(jobs), unit="run", disable=not progress) as bar:
        for place, job in enumerate(jobs):
            bar.set_description(job[0])
            folder.write(job[0], *_job(calibration, *job[1:], bar.update))
            # Nelder-Mead may stop before its budget is spent.
            bar.update(each * (place + 1) - bar.n)
    return _write_tables(calibration, folder)


def _job(
    calibration: Calibration,
    mechanism: Mechanism,
    reading: Reading,
    number: int,
    tick: Callable[[], object],
) -> tuple[Part, pd.DataFrame]:
    c = calibration
    # Apart by more than one calibration's seed, so that neighbouring seeds share no fit.
    seed = c.seed + number * 2 * _EVALUATION
    found = fit(mechanism, c.rows, reading, seed, c.budget, tick, c.loss)
    table = predict(mechanism, found, c.rows, c.replicates, seed + _EVALUATION, tick)
    return Part(c.settings, number, found), table


def _write_tables(calibration: Calibration, folder: CalibrationFolder) -> str:
    parts = folder.read()
    rows: Sequence[Row] = calibration.rows
    made = {
        files.PREDICTIONS: tables.all_predictions(parts),
        files.CELLS: tables.all_cells(parts, rows),
        files.SUMMARY: tables.all_summaries(parts, rows, calibration.seed),
        files.PARAMETERS: tables.all_parameters(parts),
    }
    for name, table in made.items():
        with whole(folder.path / name) as file:
            table.to_parquet(file, index=False)
    text = report(
        made[files.SUMMARY],
        made[files.CELLS],
        made[files.PARAMETERS],
        made[files.PREDICTIONS],
        rows,
    )
    with whole(folder.path / files.TABLE) as file:
        file.write_text(text, encoding="utf-8")
    return text
