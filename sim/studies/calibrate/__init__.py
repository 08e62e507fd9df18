"""Fit populations and a mechanism to the paper's TTRL rows, freeze them, predict its guard rows.

Every prediction is compared with three that need no model of the guard: a copy of the paper's own
TTRL row, the model's TTRL at matched effort, and the null model of independent problems.
"""

from sim.studies.calibrate.fitting import READINGS, Budget, Fit, Reading, fit
from sim.studies.calibrate.mechanisms import MECHANISMS, Mechanism
from sim.studies.calibrate.prediction import cell_errors, predict, summary
from sim.studies.calibrate.published import CELLS, ROWS, Row, odd_cells

__all__ = [
    "CELLS",
    "MECHANISMS",
    "READINGS",
    "ROWS",
    "Budget",
    "Fit",
    "Mechanism",
    "Reading",
    "Row",
    "cell_errors",
    "fit",
    "odd_cells",
    "predict",
    "summary",
]
