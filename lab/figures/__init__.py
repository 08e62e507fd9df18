"""Figures: pure functions from a table to a plotly figure, all in the look of `style`."""

from lab.figures.outcomes import calibration_errors, fate_bars, overhead_bars, paired_differences
from lab.figures.theory import regime_map
from lab.figures.training import guard_action, lost_votes, training_progress

__all__ = [
    "calibration_errors",
    "fate_bars",
    "guard_action",
    "lost_votes",
    "overhead_bars",
    "paired_differences",
    "regime_map",
    "training_progress",
]
