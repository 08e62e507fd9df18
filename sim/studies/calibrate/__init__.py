"""Fit populations and a mechanism to the paper's TTRL rows, freeze them, predict its guard rows.

The prediction always stands beside three that need no model of the guard: copying the paper's own
TTRL row, the model's TTRL at matched effort, and the null model of independent problems.
"""

from sim.studies.calibrate.error import cell_errors, one_run_error, summary
from sim.studies.calibrate.fitting import Budget, Fit, fit
from sim.studies.calibrate.mechanisms import MECHANISMS, Mechanism
from sim.studies.calibrate.prediction import predict
from sim.studies.calibrate.published import CELLS, ROWS, Row, odd_cells
from sim.studies.calibrate.readings import READINGS, Reading

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
    "one_run_error",
    "predict",
    "summary",
]
