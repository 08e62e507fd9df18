"""`guard-sim calibrate`: every mechanism under every reading, fitted several times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from lab.errors import UserError
from lab.files import whole
from sim.settings.machine_code import compilation_shown
from sim.studies.calibrate.error import Loss
from sim.studies.calibrate.fitting import QUICK, READINGS, Budget, Reading, fit, readings_named
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
from sim.studies.calibrate.markdown import report
from sim.studies.calibrate.mechanisms import Mechanism, mechanisms_named
from sim.studies.calibrate.prediction import predict
from sim.studies.calibrate.published import Row, rows_named

_EVALUATION = 1_000_000
"""Added to the seed for the prediction, whose draws no fit has then used."""


@dataclass(kw_only=True)
class Calibrate:
    """Fit the paper's TTRL fate rows, freeze, predict its guard rows and compare with baselines."""

    out: Path
    """Folder: new, empty, or with an unfinished calibration of the same settings. Commands with
    other mechanisms may share it."""
    rows: tuple[str, ...] = ()
    """Rows of the paper such as llama-math500; all six if left out."""
    mechanisms: tuple[str, ...] = ()
    """independent, attractor, spread and features if left out; also mixture and adam."""
    readings: tuple[str, ...] = ()
    """Readings of label accuracy, share of votes or majority is right; both if left out."""
    replicates: int = 16
    """Runs per row and arm of the prediction."""
    fits: int = 2
    """Fits per mechanism and reading, each with seeds of its own."""
    seed: int = 0
    """Seed of fits and predictions."""
    loss: Loss = "points"
    """Error that a fit minimises: points per cell, or the distance of the roots, in which rare
    fates count as much as common ones."""
    quick: bool = False
    """A coarse fit and four runs per prediction, to see that it works."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Calibrate, then print the tables."""
        calibration = Calibration(
            rows=rows_named(self.rows),
            mechanisms=mechanisms_named(self.mechanisms),
            readings=readings_named(self.readings),
            budget=QUICK if self.quick else Budget(),
            replicates=min(self.replicates, 4) if self.quick else self.replicates,
            fits=1 if self.quick else self.fits,
            seed=self.seed,
            loss=self.loss,
        )
        print(run_calibration(calibration, self.out, progress=not self.quiet))
        print(self.out)


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
        The Markdown tables, over all finished parts of the folder.

    Raises:
        UserError: the folder holds something else, or a run failed.
    """
    folder = CalibrationFolder(out, calibration.settings)
    jobs = [job for job in calibration.jobs() if not folder.has(job[0])]
    each = len(calibration.rows) * (calibration.budget.runs_per_row + 1)
    bar = tqdm(total=each * len(jobs), unit="run", disable=not progress)
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
    text = report(
        made[SUMMARY],
        made[CELLS],
        made[PARAMETERS],
        made[PREDICTIONS],
        rows,
    )
    with whole(folder.path / TABLE) as file:
        file.write_text(text, encoding="utf-8")
    return text
