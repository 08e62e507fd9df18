"""Small multiples: equal panels in at most two columns, readable on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.figures.style import safe

COLUMNS = 2


def multiples(
    titles: Sequence[str],
    columns: int = COLUMNS,
    row_gap: float = 0.3,
    column_gap: float = 0.12,
    shared_yaxes: bool = False,
) -> go.Figure:
    """Empty panels, filled row by row.

    Args:
        titles: one per panel, not escaped; empty for none.
        columns: largest number of panels in a row.
        row_gap: of the figure's height, between two rows of panels.
        column_gap: of its width, between two columns.
        shared_yaxes: panels of one row share their axis.
    """
    n_columns = max(1, min(columns, len(titles)))
    n_rows = math.ceil(len(titles) / n_columns)
    return make_subplots(
        rows=n_rows,
        cols=n_columns,
        subplot_titles=[f"<b>{safe(title)}</b>" if title else "" for title in titles],
        vertical_spacing=row_gap / max(n_rows, 2),
        horizontal_spacing=column_gap,
        shared_yaxes=shared_yaxes,
    )


class Place(TypedDict):
    """Position of a panel, as plotly's arguments."""

    row: int
    col: int


def place_of(panel: int, n_panels: int, columns: int = COLUMNS) -> Place:
    """Row and column of a panel, as plotly's arguments `row` and `col`."""
    n_columns = max(1, min(columns, n_panels))
    return {"row": panel // n_columns + 1, "col": panel % n_columns + 1}


def n_rows(n_panels: int, columns: int = COLUMNS) -> int:
    """Rows of panels."""
    return math.ceil(n_panels / max(1, min(columns, n_panels)))
