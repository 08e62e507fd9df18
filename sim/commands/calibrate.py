"""`guard-sim calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class Calibrate:
    """Fit the paper's TTRL fate rows, freeze, predict its guard rows and compare with baselines.

    Examples:
        guard-sim calibrate --quick --out runs/quick
        guard-sim calibrate --rows llama-math500 --mechanisms attractor --out runs/llama
        guard-sim calibrate --out runs/calibration
    """

    out: Path
    """New or empty folder for the tables."""
    rows: tuple[str, ...] = ()
    """Rows of the paper such as llama-math500; all six if left out."""
    mechanisms: tuple[str, ...] = ()
    """independent, attractor, spread and features; all if left out."""
    readings: tuple[str, ...] = ()
    """Readings of label accuracy, share of votes or majority is right; both if left out."""
    replicates: int = 16
    """Runs per row and arm of the prediction."""
    fits: int = 2
    """Fits per mechanism and reading, each with seeds of its own."""
    seed: int = 0
    """Seed of fits and predictions."""
    quick: bool = False
    """A coarse fit and four runs per prediction, to see that it works."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Calibrate, then print the tables."""
        from sim.studies.calibrate import (
            MECHANISMS,
            QUICK,
            READINGS,
            ROWS,
            Budget,
            Calibration,
            chosen,
            run_calibration,
        )

        asked = set(chosen("readings", self.readings, READINGS))
        calibration = Calibration(
            rows=[ROWS[name] for name in chosen("rows", self.rows, ROWS)],
            mechanisms=[MECHANISMS[n] for n in chosen("mechanisms", self.mechanisms, MECHANISMS)],
            readings=[reading for reading in READINGS if reading in asked],
            budget=QUICK if self.quick else Budget(),
            replicates=min(self.replicates, 4) if self.quick else self.replicates,
            fits=1 if self.quick else self.fits,
            seed=self.seed,
        )
        print(run_calibration(calibration, self.out, progress=not self.quiet))
        print(self.out)
