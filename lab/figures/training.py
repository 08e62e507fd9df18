"""Curves over training: means with their spread, single runs, the window, a guard's actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.arms import arm_order
from lab.base.columns import floats, ints, where
from lab.figures import style
from lab.figures.style import Place, Titles, arm_style, arm_title, band, multiples, safe, styled

PROGRESS_TITLE = "training progress (%)"


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity over training, and its curve where that is not an arm's."""

    column: str
    """Of `lab.measures.dynamics`, a share from 0 to 1."""
    title: str
    unit: str
    """Beside the axis."""
    factor: float = 100.0
    """From the column to the unit; 100 for percent."""
    top: float | None = None
    """Fixed upper end of the axis in the unit; None fits the data."""
    colour: str = style.BLACK
    dash: str = "solid"


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
    Panel("flip_rate", "FR", "% of problems (FR)", colour=style.VERMILLION),
    Panel("match_rate", "MR", "% of votes (MR)", colour=style.BLACK, dash="dash"),
    Panel("pass_at_1", "pass@1", "% of responses (pass@1)", colour=style.BLUE, dash="dashdot"),
)
WEIGHT = Panel("weight", "FRS: mean weight of the loss", "factor", 1.0, 1.05, style.BLUE)
BETA = Panel("beta", "MPS: mean share of the minority loss", "% of loss", colour=style.PURPLE)
TOUCHED = (
    Panel("weighted_share", "weight below 1", "% of visits", colour=style.BLUE),
    Panel(
        "minority_share", "a minority candidate", "% of visits", colour=style.PURPLE, dash="dash"
    ),
    Panel("skipped", "left out (RCSU)", "% of visits", colour=style.VERMILLION, dash="dot"),
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


def _add_curve(
    figure: go.Figure, place: Place, table: pd.DataFrame, panel: Panel, group: str
) -> None:
    """Add the band of one standard deviation, where there is one, and the line of means over it.

    Curves of one group show and hide together, and the legend names the first of them by the
    panel's title, unless the group is "". There is none where the panel's column is empty.
    """
    traces: Any = figure.data
    values = spread(table, panel.column)
    if values.empty:
        return
    x = 100 * floats(values, "progress")
    mean, sd = (panel.factor * floats(values, name) for name in ("mean", "sd"))
    line = go.Scatter(
        x=x,
        y=mean,
        customdata=style.hover_sd(zip(sd, values["n"], strict=True)),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": panel.colour, "width": 2.2, "dash": panel.dash},
        marker={"color": panel.colour},
        legendgroup=group,
        showlegend=group not in {"", *(trace.legendgroup for trace in traces)},
        hovertemplate=(
            f"%{{y:.3g}}%{{customdata[0]}} {safe(panel.unit)}<br>%{{x:.0f}} % of training, "
            "%{customdata[1]} replicates"
        ),
    )
    known = np.isfinite(sd)
    if known.any():
        # A share cannot leave 0 to 1, so neither can the band.
        low, high = (np.clip(mean + side * sd, 0, panel.factor)[known] for side in (-1, 1))
        area = band(x[known], low, high, panel.colour, group)
        figure.add_trace(area.update(name=panel.title), **place)
    figure.add_trace(line.update(name=panel.title), **place)


def _panel_grid(panels: Sequence[Panel], panel_height: int) -> tuple[go.Figure, list[Place]]:
    """Empty panels in the look of all figures, the legend 28 pixels above them."""
    titles = [panel.title for panel in panels]
    figure, places = multiples(titles, columns=1, row_gap=0.22, shared_xaxes=True)
    for panel, place in zip(panels, places, strict=True):
        span = None if panel.top is None else [0, panel.top]
        figure.update_yaxes(title_text=panel.unit, range=span, rangemode="tozero", **place)
    figure.update_xaxes(title_text=PROGRESS_TITLE, **places[-1])
    height = panel_height * len(panels)
    return styled(figure, height + 110, legend={"y": 1 + 28 / height}, hovermode="closest"), places


def arm_curves(
    table: pd.DataFrame, panels: Sequence[Panel], titles: Titles = None, panel_height: int = 210
) -> go.Figure:
    """Panels below each other, in each one curve per arm with a band of one standard deviation.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`, as of all figures here.
        panel_height: pixels.
    """
    figure, places = _panel_grid(panels, panel_height)
    for arm in arm_order(table["arm"]):
        look, of_arm = arm_style(arm), where(table, arm=arm)
        name = safe(arm_title(arm, titles))
        for panel, place in zip(panels, places, strict=True):
            drawn = replace(panel, title=name, colour=look.colour, dash=look.dash)
            _add_curve(figure, place, of_arm, drawn, safe(arm))
    return figure


def training_progress(table: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """FR, MR and pass@1 of every arm over normalised progress."""
    return arm_curves(table, PROGRESS_PANELS, titles)


def lost_votes(table: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Share of visits to lost problems at which the correct answer still wins the vote.

    The table is one that was made with fates.
    """
    return arm_curves(table, [LOST_PANEL], titles, panel_height=260)


def training_window(
    dynamics: pd.DataFrame, shares: pd.DataFrame, titles: Titles = None
) -> go.Figure:
    """FR, MR and pass@1 with their spread over the share of runs whose window is open.

    Args:
        shares: `lab.measures.dynamics.window_share` tables with the column `arm`.
    """
    arms = arm_order(dynamics["arm"])
    figure, places = multiples([arm_title(arm, titles) for arm in arms], columns=1, row_gap=0.22)
    for arm, place in zip(arms, places, strict=True):
        share = where(shares, arm=arm)
        figure.add_scatter(
            x=100 * floats(share, "progress"),
            y=100 * floats(share, "share"),
            customdata=share[["n"]].to_numpy().tolist(),
            mode="lines",
            line={"width": 0, "shape": "hvh"},
            fill="tozeroy",
            fillcolor=style.translucent(style.ORANGE, 0.22),
            name=WINDOW_TITLE,
            legendgroup="window",
            showlegend=arm == arms[0],
            hovertemplate=(
                "%{y:.0f} % of %{customdata[0]} runs are in the window at %{x:.0f} % of training"
                "<extra></extra>"
            ),
            **place,
        )
        for panel in CURVES:
            _add_curve(figure, place, where(dynamics, arm=arm), panel, panel.column)
    return _percent_panels(figure, places, 260 * len(arms) + 120)


def _percent_panels(figure: go.Figure, places: Sequence[Place], height: int) -> go.Figure:
    figure.update_yaxes(range=[0, 100])
    figure.update_yaxes(title_text="%", col=1)
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=places[-1]["row"])
    figure.update_layout(legend_traceorder="normal")
    return styled(figure, height, legend={"y": 1 + 34 / (height - 90)}, hovermode="closest")


def overlay(real: pd.DataFrame, simulated: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Means with bands of one standard deviation, real runs solid and simulated ones dotted.

    Arms that only one of both has are left out.
    """
    arms = arm_order(set(real["arm"]) & set(simulated["arm"]))
    titles_of = [arm_title(arm, titles) for arm in arms]
    figure, places = multiples(titles_of, row_gap=0.25, shared_yaxes=True)
    for arm, place in zip(arms, places, strict=True):
        for world, dash, table in (("real", "solid", real), ("simulated", "dot", simulated)):
            for panel in CURVES:
                curve = replace(panel, title=f"{panel.title}, {world}", dash=dash)
                _add_curve(figure, place, where(table, arm=arm), curve, curve.title)
    return _percent_panels(figure, places, 240 * places[-1]["row"] + 130)


def guard_action(table: pd.DataFrame) -> go.Figure:
    """Mean weight, shares of visits (`TOUCHED`) and mean beta over training, of one guarded arm."""
    middle = Panel("", "Visits with …", "% of visits")
    figure, places = _panel_grid((WEIGHT, middle, BETA), 170)
    for panel, place in ((WEIGHT, places[0]), (BETA, places[2])):
        # A panel of one curve needs no legend.
        _add_curve(figure, place, table, replace(panel, title=""), group="")
    for panel in TOUCHED:
        _add_curve(figure, places[1], table, panel, panel.column)
    return figure
