"""Heat map of the mean change of label accuracy per fate and method."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import of_arm, rows
from lab.figures.style import BLUE, FATE_COLOURS, GREY, VERMILLION, arm_order, arm_title, styled
from lab.figures.style import wrapped as wrap
from lab.stats.paired import Estimate, estimate
from lab.stats.words import mean_sd

DIVERGING = ((0.0, VERMILLION), (0.5, "#F7F7F7"), (1.0, BLUE))
"""Worse, unchanged, better: distinguishable under any common colour blindness."""
_ROW = 46


def change_heatmap(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """FLA - ILA in points of label accuracy: fates down, methods across.

    Args:
        table: `lab.measures.change.mean_change` tables with the column `arm`. A cell is the mean
        over the
            replicates that have such problems, and empty where none has.
        titles: arm to title, where it differs from `lab.arms`.
    """
    arms, fates = arm_order(table["arm"]), list(FATE_COLOURS)
    cells = [[_cell(of_arm(table, arm), fate) for arm in arms] for fate in fates]
    # A NaN is a hole in the picture, but no number in JSON.
    z = [[None if math.isnan(e.mean) else e.mean for e, _ in line] for line in cells]
    figure = go.Figure(
        go.Heatmap(
            x=[wrap(arm_title(arm, titles), 9) for arm in arms],
            y=[wrap(fate, 12) for fate in fates],
            z=z,
            zmin=-100,
            zmax=100,
            colorscale=DIVERGING,
            showscale=False,  # the numbers stand in the cells
            text=[[_text(e) for e, _ in line] for line in cells],
            texttemplate="%{text}",
            customdata=[[[_hover(e, count)] for e, count in line] for line in cells],
            hovertemplate="%{y}, %{x}<br>%{customdata[0]}<extra></extra>",
            hoverongaps=True,
            xgap=2,
            ygap=2,
        )
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_xaxes(
        showgrid=False, ticks="", side="top", linecolor=GREY, tickangle=0, tickfont_size=11
    )
    return styled(figure, _ROW * len(fates) + 110)


def _cell(own: pd.DataFrame, fate: str) -> tuple[Estimate, float]:
    """The change over the replicates in points, and problems per replicate that has any."""
    part = rows(own, own["fate"].to_numpy() == fate)
    count = float(np.mean(floats(part, "n_problems"))) if len(part) else 0.0
    return estimate(100 * floats(part, "change")), count


def _text(value: Estimate) -> str:
    """Mean and, below it, its spread."""
    return mean_sd(value.mean, value.sd, 0, signed=True).replace(" ± ", "<br>±")


def _hover(value: Estimate, count: float) -> str:
    if value.n == 0:
        return "no such problem"
    change = mean_sd(value.mean, value.sd, signed=True)
    return f"{change} points<br>{value.n} replicates, {count:.1f} problems each"
