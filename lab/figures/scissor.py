"""The scissor: wrong labels gather votes, the correct answer loses its room, the window closes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats, ints
from lab.figures.curves import hover_sd, of_arm, rows
from lab.figures.multiples import multiples, place_of
from lab.figures.style import arm_order, arm_style, arm_title, safe, styled
from lab.measures.scissor import THIRDS
from lab.stats.paired import Estimate, estimate

PANELS = (
    ("below_half", "a  Wrong MR below ½", "% of problems", 100.0),
    ("survival", "b  Survival space", "1 - MR of wrong label (%)", 100.0),
    ("wins", "c  Correct wins", "visits of a problem", 1.0),
)
"""Column of `lab.measures.scissor.scissor`, heading, unit, factor."""
WIDTH_TITLE = "d  Window width"
_NAMES = ("first", "middle", "last")


def scissor_panels(
    thirds: pd.DataFrame, widths: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Three quantities per third of training and the window's width, mean and one sd over runs.

    Args:
        thirds: `lab.measures.scissor.scissor` tables with the column `arm`.
        widths: `lab.measures.window_share.window_width` tables with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    heads = [*(head for _, head, *_ in PANELS), WIDTH_TITLE]
    figure = multiples(heads, row_gap=0.32, column_gap=0.26)
    arms = arm_order([*thirds["arm"], *widths["arm"]])
    for number, arm in enumerate(arms):
        name = safe(arm_title(arm, titles))
        for panel, (column, _, unit, factor) in enumerate(PANELS):
            trace = _per_third(of_arm(thirds, arm), column, unit, factor, arm)
            trace.update(name=name, showlegend=panel == 0)
            figure.add_trace(trace, **place_of(panel, len(heads)))
        width = _width(of_arm(widths, arm), number, arm)
        width.name = name
        figure.add_trace(width, **place_of(len(PANELS), len(heads)))
    for panel, (_, _, unit, factor) in enumerate(PANELS):
        span = [0, 104] if factor == 100 else None
        figure.update_yaxes(
            title_text=unit, range=span, rangemode="tozero", **place_of(panel, len(heads))
        )
        figure.update_xaxes(range=[-0.3, THIRDS - 0.7], **place_of(panel, len(heads)))
    figure.update_xaxes(tickvals=list(range(THIRDS)), ticktext=_NAMES, title_text="third")
    last = place_of(len(PANELS), len(heads))
    figure.update_yaxes(title_text="% of a problem's visits", range=[0, 116], **last)
    figure.update_xaxes(
        tickvals=[], title_text="methods", range=[-0.6, len(arms) - 0.4], ticktext=[], **last
    )
    figure.update_annotations(font_size=13)
    return styled(figure, 640, legend={"y": 1 + 34 / 550}, hovermode="closest")


def _per_third(own: pd.DataFrame, column: str, unit: str, factor: float, arm: str) -> go.Scatter:
    found = [
        estimate(factor * floats(rows(own, ints(own, "third") == third), column))
        for third in range(1, THIRDS + 1)
    ]
    return _points(arm, list(range(THIRDS)), found, unit, "lines+")


def _width(own: pd.DataFrame, place: int, arm: str) -> go.Scatter:
    found = [estimate(100 * floats(own, "window"))]
    trace = _points(arm, [place], found, "% of a problem's visits", "")
    trace.showlegend = False
    return trace


def _points(arm: str, x: list[int], found: list[Estimate], unit: str, lines: str) -> go.Scatter:
    style = arm_style(arm)
    sds = [value.sd if value.has_interval else 0.0 for value in found]
    return go.Scatter(
        x=x,
        y=[value.mean for value in found],
        customdata=hover_sd((v.sd for v in found), (v.n for v in found)),
        mode=f"{lines}markers",
        line={"color": style.colour, "width": 2.2, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 8},
        error_y={
            "type": "data",
            "array": sds,
            # Shares and counts cannot fall below zero, so neither can their bars.
            "arrayminus": np.minimum(sds, [value.mean for value in found]),
            "color": style.colour,
            "thickness": 1.5,
            "width": 4,
        },
        legendgroup=safe(arm),
        hovertemplate=(
            f"%{{y:.3g}}%{{customdata[0]}} {unit}, %{{customdata[1]}} replicates"
            "<extra>%{fullData.name}</extra>"
        ),
    )
