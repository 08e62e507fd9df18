"""Actions of a guard: the routes of the visits, and weights, skips and minority sets over time."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from guard_core import Route
from lab.figures.curves import (
    PROGRESS_TITLE,
    Panel,
    curve,
    finish_panels,
    hover_sd,
    panel_grid,
    spread,
)
from lab.figures.style import BLUE, PURPLE, ROUTE_COLOURS, VERMILLION, safe, styled, translucent
from lab.measures.dynamics import ROUTE_COLUMNS
from lab.trace.schema import ROUTES

WEIGHT = Panel("weight", "FRS: mean weight of the loss", "factor", factor=1.0, top=1.05)
BETA = Panel("beta", "MPS: mean share of the minority loss", "% of loss")
TOUCHED = (
    (Panel("weighted_share", "weight below 1", "% of visits"), BLUE, "solid"),
    (Panel("minority_share", "a minority candidate", "% of visits"), PURPLE, "dash"),
    (Panel("skipped", "left out (RCSU)", "% of visits"), VERMILLION, "dot"),
)
_TOUCHED = Panel("", "Visits with …", "% of visits")


def routes(table: pd.DataFrame) -> go.Figure:
    """Share of visits on each route over training, stacked, the stable ones on top.

    Args:
        table: `lab.measures.dynamics` of one guarded arm.
    """
    figure = go.Figure()
    # The stable visits on top, so that the others stand on the axis and can be read off.
    for code, column in reversed(ROUTE_COLUMNS.items()):
        values = spread(table, column)
        name = ROUTES[code]
        figure.add_scatter(
            x=100 * values["progress"],
            y=100 * values["mean"],
            customdata=hover_sd(100 * values["sd"], values["n"]),
            name=safe(name),
            stackgroup="routes",
            mode="lines",
            line={"width": 0.8, "color": ROUTE_COLOURS[name]},
            fillcolor=translucent(ROUTE_COLOURS[name], 0.4 if code == Route.STABLE else 0.9),
            hovertemplate=("%{y:.1f}%{customdata[0]} % of visits, %{customdata[1]} replicates"),
        )
    figure.update_xaxes(title_text=PROGRESS_TITLE)
    figure.update_yaxes(title_text="% of visits", range=[0, 100])
    return styled(figure, 320, legend={"traceorder": "reversed"}, hovermode="x unified")


def guard_action(table: pd.DataFrame) -> go.Figure:
    """Mean weight, visits that a rule touched, and mean beta over training.

    Args:
        table: `lab.measures.dynamics` of one guarded arm.
    """
    panels = (WEIGHT, _TOUCHED, BETA)
    figure = panel_grid(panels)
    for row, (panel, colour) in {1: (WEIGHT, BLUE), 3: (BETA, PURPLE)}.items():
        figure.add_traces(curve(spread(table, panel.column), panel, colour, panel.column), row, 1)
    for panel, colour, dash in TOUCHED:
        traces = curve(spread(table, panel.column), panel, colour, panel.column, dash)
        traces[-1].update(name=panel.title, showlegend=True)
        figure.add_traces(traces, 2, 1)
    return finish_panels(figure, panels, 170)
