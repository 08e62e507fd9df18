"""Figures: pure functions from a table to a plotly figure, all in the look of `style`."""

from __future__ import annotations

from lab.figures.curves import lost_votes, training_progress
from lab.figures.fates import fate_bars
from lab.figures.guarding import guard_action, routes
from lab.figures.paired import paired_differences

__all__ = [
    "fate_bars",
    "guard_action",
    "lost_votes",
    "paired_differences",
    "routes",
    "training_progress",
]
