"""Figures: pure functions from a table to a plotly figure, all in the look of `style`."""

from __future__ import annotations

from lab.figures.outcome import fate_bars, paired_differences
from lab.figures.training import guard_action, lost_votes, routes, training_progress

__all__ = [
    "fate_bars",
    "guard_action",
    "lost_votes",
    "paired_differences",
    "routes",
    "training_progress",
]
