"""FR, MR and pass@1 in one panel per arm: with the extinction window, or real over simulated."""

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
_OVERLAY_HEIGHT = 240
_DASHES = {"real": "solid", "simulated": "dot"}
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


def overlay(
    real: pd.DataFrame, simulated: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Means with bands of one standard deviation, real runs solid and simulated ones dotted.

    Args:
        real: `lab.measures.dynamics` tables with the column `arm`.
        simulated: the same; arms that only one of both has are left out.
        titles: arm to title, where it differs from `lab.arms`.
    """
    arms = arm_order(set(real["arm"]) & set(simulated["arm"]))
    figure = multiples([arm_title(arm, titles) for arm in arms], row_gap=0.25, shared_yaxes=True)
    for number, arm in enumerate(arms):
        place = place_of(number, len(arms))
        for (name, dash), table in zip(_DASHES.items(), (real, simulated), strict=True):
            own = of_arm(table, arm)
            for panel, colour, _ in CURVES:
                if not has_data(own, [panel.column]):
                    continue
                group = f"{panel.column}-{name}"
                for trace in curve(spread(own, panel.column), panel, colour, group, dash):
                    figure.add_trace(trace, **place)
                figure.data[-1].update(name=f"{panel.title}, {name}", showlegend=number == 0)
    figure.update_yaxes(range=[0, 100])
    figure.update_yaxes(title_text="%", col=1)
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=n_rows(len(arms)))
    figure.update_annotations(font_size=13)
    height = _OVERLAY_HEIGHT * n_rows(len(arms)) + 130
    legend = {"y": 1 + 34 / (height - 90), "traceorder": "normal"}
    return styled(figure, height, legend=legend, hovermode="closest")
