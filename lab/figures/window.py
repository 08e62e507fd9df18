"""Training dynamics with the extinction window shaded: FR, MR and pass@1 in one panel per arm."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import PROGRESS_TITLE, Panel, curve, has_data, of_arm, spread
from lab.figures.multiples import multiples, n_rows, place_of
from lab.figures.style import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILLION,
    arm_order,
    arm_title,
    styled,
    translucent,
)

_PANEL_HEIGHT = 260
WINDOW_TITLE = "runs in the window (FR peak to collapse)"
CURVES = (
    (Panel("flip_rate", "FR", "% of problems (FR)"), VERMILLION, "solid"),
    (Panel("match_rate", "MR", "% of votes (MR)"), BLACK, "dash"),
    (Panel("pass_at_1", "pass@1", "% of responses (pass@1)"), BLUE, "dashdot"),
)


def training_window(
    dynamics: pd.DataFrame, shares: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """FR, MR and pass@1 with their spread over the share of runs whose window is open.

    The window of a run reaches from the peak of its FR to the epoch from which FR stays below half
    of the peak; where the shade is as high as the panel, all runs are in it.

    Args:
        dynamics: `lab.measures.dynamics` tables with the column `arm`.
        shares: `lab.measures.window_share` tables with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    arms = arm_order(dynamics["arm"])
    figure = multiples([arm_title(arm, titles) for arm in arms], columns=1, row_gap=0.22)
    shown = {
        panel.column: next((a for a in arms if has_data(of_arm(dynamics, a), [panel.column])), "")
        for panel, *_ in CURVES
    }
    for number, arm in enumerate(arms):
        place = place_of(number, len(arms), 1)
        figure.add_trace(_shade(of_arm(shares, arm), number == 0), **place)
        own = of_arm(dynamics, arm)
        for panel, colour, dash in CURVES:
            if not has_data(own, [panel.column]):
                continue
            traces = curve(spread(own, panel.column), panel, colour, panel.column, dash)
            traces[-1].update(name=panel.title, showlegend=shown[panel.column] == arm)
            for trace in traces:
                figure.add_trace(trace, **place)
    figure.update_yaxes(title_text="%", range=[0, 100])
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=n_rows(len(arms), 1))
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    height = _PANEL_HEIGHT * len(arms) + 120
    legend = {"y": 1 + 34 / (height - 90), "traceorder": "normal"}
    return styled(figure, height, legend=legend, hovermode="closest")


def _shade(shares: pd.DataFrame, in_legend: bool) -> go.Scatter:
    return go.Scatter(
        x=100 * floats(shares, "progress"),
        y=100 * floats(shares, "share"),
        customdata=shares[["n"]].to_numpy().tolist(),
        mode="lines",
        line={"width": 0, "shape": "hvh"},
        fill="tozeroy",
        fillcolor=translucent(ORANGE, 0.22),
        name=WINDOW_TITLE,
        legendgroup="window",
        showlegend=in_legend,
        hovertemplate=(
            "%{y:.0f} % of %{customdata[0]} runs are in the window at %{x:.0f} % of training"
            "<extra></extra>"
        ),
    )
