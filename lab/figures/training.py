"""Curves over training: means with their spread, single runs, the window, a guard's actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.arms import arm_order
from lab.base.columns import floats, ints, where
from lab.figures.style import (
    BLACK,
    BLUE,
    ORANGE,
    PURPLE,
    VERMILLION,
    Place,
    arm_style,
    arm_title,
    band,
    hover_sd,
    multiples,
    safe,
    styled,
    translucent,
)

PROGRESS_TITLE = "training progress (%)"


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity over training."""

    column: str
    """Of `lab.measures.dynamics`, a share from 0 to 1."""
    title: str
    unit: str
    """Beside the axis."""
    factor: float = 100.0
    """From the column to the unit; 100 for percent."""
    top: float | None = None
    """Fixed upper end of the axis in the unit; None fits the data."""


PROGRESS_PANELS = (
    Panel("flip_rate", "FR: labels that changed", "% of problems"),
    Panel("match_rate", "MR: votes that the label got", "% of votes"),
    Panel("pass_at_1", "pass@1", "% of responses"),
)
LOST_PANEL = Panel(
    "correct_vote_rate_lost", "Correct-vote rate on lost problems", "% of visits", top=100.0
)
WINDOW_TITLE = "runs in the window (FR peak to collapse)"
CURVES = (
    (Panel("flip_rate", "FR", "% of problems (FR)"), VERMILLION, "solid"),
    (Panel("match_rate", "MR", "% of votes (MR)"), BLACK, "dash"),
    (Panel("pass_at_1", "pass@1", "% of responses (pass@1)"), BLUE, "dashdot"),
)
WEIGHT = Panel("weight", "FRS: mean weight of the loss", "factor", factor=1.0, top=1.05)
BETA = Panel("beta", "MPS: mean share of the minority loss", "% of loss")
TOUCHED = (
    (Panel("weighted_share", "weight below 1", "% of visits"), BLUE, "solid"),
    (Panel("minority_share", "a minority candidate", "% of visits"), PURPLE, "dash"),
    (Panel("skipped", "left out (RCSU)", "% of visits"), VERMILLION, "dot"),
)


def spread(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Progress, mean, sd (NaN where n is 1) and n over replicates at each epoch, NaN left out."""
    values = floats(table, column)
    known = np.isfinite(values)
    values, progress = values[known], floats(table, "progress")[known]
    # Sums over sorted groups: this is called for every curve of a page, and pandas takes long.
    _, group = np.unique(ints(table, "epoch")[known], return_inverse=True)
    n = np.bincount(group)
    mean = np.bincount(group, values) / n
    squares = np.bincount(group, (values - mean[group]) ** 2)
    sd = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    centre = np.bincount(group, progress) / n
    return pd.DataFrame({"progress": centre, "mean": mean, "sd": sd, "n": n})


def curve(
    table: pd.DataFrame, panel: Panel, colour: str, group: str, dash: str = "solid"
) -> list[go.Scatter]:
    """The band of one standard deviation, where there is one, and the line of means over it.

    Curves of one group show and hide together; there is none where the panel's column is empty.
    """
    values = spread(table, panel.column)
    if values.empty:
        return []
    x = 100 * floats(values, "progress")
    mean, sd = (panel.factor * floats(values, name) for name in ("mean", "sd"))
    line = go.Scatter(
        x=x,
        y=mean,
        customdata=hover_sd(zip(sd, values["n"], strict=True)),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": colour, "width": 2.2, "dash": dash},
        marker={"color": colour},
        legendgroup=group,
        showlegend=False,
        hovertemplate=(
            f"%{{y:.3g}}%{{customdata[0]}} {safe(panel.unit)}<br>%{{x:.0f}} % of training, "
            "%{customdata[1]} replicates"
        ),
    )
    known = np.isfinite(sd)
    if not known.any():
        return [line]
    # A share cannot leave 0 to 1, so neither can the band.
    low, high = (np.clip(mean + side * sd, 0, panel.factor)[known] for side in (-1, 1))
    return [band(x[known], low, high, colour, group), line]


def _panel_grid(panels: Sequence[Panel], panel_height: int) -> go.Figure:
    """Empty panels in the look of all figures, the legend 28 pixels above them."""
    titles = [panel.title for panel in panels]
    figure, _ = multiples(titles, columns=1, row_gap=0.22, shared_xaxes=True)
    for row, panel in enumerate(panels, start=1):
        span = None if panel.top is None else [0, panel.top]
        figure.update_yaxes(title_text=panel.unit, range=span, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=len(panels), col=1)
    height = panel_height * len(panels)
    return styled(figure, height + 110, legend={"y": 1 + 28 / height}, hovermode="closest")


def arm_curves(
    table: pd.DataFrame,
    panels: Sequence[Panel],
    titles: Mapping[str, str] | None = None,
    panel_height: int = 210,
) -> go.Figure:
    """Panels below each other, in each one curve per arm with a band of one standard deviation.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`, as of all figures here.
        panel_height: pixels.
    """
    figure = _panel_grid(panels, panel_height)
    for arm in arm_order(table["arm"]):
        style, own = arm_style(arm), where(table, arm=arm)
        named = False
        for row, panel in enumerate(panels, start=1):
            traces = curve(own, panel, style.colour, safe(arm), style.dash)
            for trace in traces:
                trace.name = safe(arm_title(arm, titles))
                figure.add_trace(trace, row, 1)
            if traces and not named:
                figure.data[-1].showlegend = named = True
    return figure


def training_progress(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """FR, MR and pass@1 of every arm over normalised progress."""
    return arm_curves(table, PROGRESS_PANELS, titles)


def lost_votes(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Share of visits to lost problems at which the correct answer still wins the vote.

    The table is one that was made with fates.
    """
    return arm_curves(table, [LOST_PANEL], titles, panel_height=260)


def training_window(
    dynamics: pd.DataFrame, shares: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """FR, MR and pass@1 with their spread over the share of runs whose window is open.

    The window of a run reaches from the peak of its FR to the epoch from which FR stays below half
    of the peak; where the shade is as high as the panel, all runs are in it.

    Args:
        shares: `lab.measures.dynamics.window_share` tables with the column `arm`.
    """
    arms = arm_order(dynamics["arm"])
    figure, places = multiples([arm_title(arm, titles) for arm in arms], columns=1, row_gap=0.22)
    named: set[str] = set()
    for arm, place in zip(arms, places, strict=True):
        own = where(shares, arm=arm)
        figure.add_scatter(
            x=100 * floats(own, "progress"),
            y=100 * floats(own, "share"),
            customdata=own[["n"]].to_numpy().tolist(),
            mode="lines",
            line={"width": 0, "shape": "hvh"},
            fill="tozeroy",
            fillcolor=translucent(ORANGE, 0.22),
            name=WINDOW_TITLE,
            legendgroup="window",
            showlegend=arm == arms[0],
            hovertemplate=(
                "%{y:.0f} % of %{customdata[0]} runs are in the window at %{x:.0f} % of training"
                "<extra></extra>"
            ),
            **place,
        )
        _add_curves(figure, place, where(dynamics, arm=arm), CURVES, named)
    return _percent_panels(figure, places, 260 * len(arms) + 120)


def _add_curves(
    figure: go.Figure,
    place: Place,
    own: pd.DataFrame,
    curves: Sequence[tuple[Panel, str, str]],
    named: set[str],
    of: str = "",
    dash: str = "",
) -> None:
    """Add the curves of one arm; the legend names each kind of curve once."""
    for panel, colour, usual in curves:
        group = panel.column + of
        for trace in (traces := curve(own, panel, colour, group, dash or usual)):
            figure.add_trace(trace, **place)
        if traces:
            figure.data[-1].update(name=panel.title + of, showlegend=group not in named)
            named.add(group)


def _percent_panels(figure: go.Figure, places: Sequence[Place], height: int) -> go.Figure:
    figure.update_yaxes(range=[0, 100])
    figure.update_yaxes(title_text="%", col=1)
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=places[-1]["row"])
    figure.update_layout(legend_traceorder="normal")
    return styled(figure, height, legend={"y": 1 + 34 / (height - 90)}, hovermode="closest")


def overlay(
    real: pd.DataFrame, simulated: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Means with bands of one standard deviation, real runs solid and simulated ones dotted.

    Arms that only one of both has are left out.
    """
    arms = arm_order(set(real["arm"]) & set(simulated["arm"]))
    titles_of = [arm_title(arm, titles) for arm in arms]
    figure, places = multiples(titles_of, row_gap=0.25, shared_yaxes=True)
    named: set[str] = set()
    for arm, place in zip(arms, places, strict=True):
        for name, dash, table in (("real", "solid", real), ("simulated", "dot", simulated)):
            _add_curves(figure, place, where(table, arm=arm), CURVES, named, f", {name}", dash)
    return _percent_panels(figure, places, 240 * places[-1]["row"] + 130)


def guard_action(table: pd.DataFrame) -> go.Figure:
    """Mean weight, shares of visits (`TOUCHED`) and mean beta over training, of one guarded arm."""
    figure = _panel_grid((WEIGHT, Panel("", "Visits with …", "% of visits"), BETA), 170)
    figure.add_traces(curve(table, WEIGHT, BLUE, WEIGHT.column), 1, 1)
    figure.add_traces(curve(table, BETA, PURPLE, BETA.column), 3, 1)
    _add_curves(figure, {"row": 2, "col": 1}, table, TOUCHED, set())
    return figure
