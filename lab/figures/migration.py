"""Label migration: where problems began and where they ended, as bubbles in the fates' colours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import hover_sd, of_arm, rows
from lab.figures.multiples import multiples, n_rows, place_of
from lab.figures.style import (
    FATE_COLOURS,
    GREY,
    arm_order,
    arm_title,
    safe,
    styled,
    translucent,
)

_PANEL_HEIGHT = 300
_LARGEST = 30
"""Pixels of the largest bubble's diameter; the area is the share."""
_SMALLEST = 3
_SYMBOLS = {"Marginal Degraded": "diamond", "Degraded": "square", "Unclassified": "cross"}


def label_migration(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Initial against final label accuracy, a panel per arm; a bubble's area is its problems.

    Args:
        table: `lab.measures.change.migration` tables with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    arms = arm_order(table["arm"])
    figure = multiples([arm_title(arm, titles) for arm in arms], shared_yaxes=True, column_gap=0.05)
    largest = float(floats(table, "share").max())
    legend: set[str] = set()
    for panel, arm in enumerate(arms):
        own, place = of_arm(table, arm), place_of(panel, len(arms))
        figure.add_trace(_unchanged(), **place)
        for fate in FATE_COLOURS:
            part = rows(own, own["fate"].to_numpy() == fate)
            if len(part):
                bubbles = _bubbles(part, fate, largest)
                bubbles.showlegend = fate not in legend
                legend.add(fate)
                figure.add_trace(bubbles, **place)
    figure.update_xaxes(range=[-9, 109], tickvals=[0, 50, 100])
    figure.update_xaxes(title_text="ILA, start (% of votes)", row=n_rows(len(arms)))
    figure.update_yaxes(range=[-9, 109], tickvals=[0, 50, 100])
    figure.update_yaxes(title_text="FLA, end (% of votes)", col=1)
    figure.update_annotations(font_size=13)
    height = _PANEL_HEIGHT * n_rows(len(arms)) + 150
    legend_place = {"y": 1 + 34 / (height - 90), "itemsizing": "constant", "traceorder": "normal"}
    return styled(figure, height, legend=legend_place, hovermode="closest")


def _bubbles(part: pd.DataFrame, fate: str, largest: float) -> go.Scatter:
    share = floats(part, "share")
    spread = hover_sd(floats(part, "sd"), part["n"])
    custom = [[value, *row] for value, row in zip(share.tolist(), spread, strict=True)]
    colour = FATE_COLOURS[fate]
    return go.Scatter(
        x=100 * floats(part, "ila"),
        y=100 * floats(part, "fla"),
        customdata=custom,
        mode="markers",
        marker={
            "size": np.maximum(_LARGEST * np.sqrt(share / largest), _SMALLEST),
            "color": translucent(colour, 0.7),
            "line": {"color": colour, "width": 1},
            "symbol": _SYMBOLS.get(fate, "circle"),
        },
        name=safe(fate),
        legendgroup=fate,
        hovertemplate=(
            "ILA %{x:.0f} %, FLA %{y:.0f} %<br>%{customdata[0]:.2f}%{customdata[1]} % of "
            "problems, %{customdata[2]} replicates<extra>%{fullData.name}</extra>"
        ),
    )


def _unchanged() -> go.Scatter:
    """Diagonal of problems that did not change."""
    return go.Scatter(
        x=[0, 100],
        y=[0, 100],
        mode="lines",
        line={"color": GREY, "width": 1, "dash": "dot"},
        hoverinfo="skip",
        showlegend=False,
    )
