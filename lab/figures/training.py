"""Curves over training: means with their spread, single runs, the window, a guard's actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from guard_core import Route
from lab.base.columns import floats, ints, where
from lab.figures.style import (
    BLACK,
    BLUE,
    ORANGE,
    PURPLE,
    ROUTE_COLOURS,
    VERMILLION,
    arm_order,
    arm_style,
    arm_title,
    band,
    hover_sd,
    multiples,
    n_rows,
    place_of,
    safe,
    styled,
    translucent,
)
from lab.measures.dynamics import ROUTE_COLUMNS
from lab.trace.schema import ROUTES

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


def spread(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean and standard deviation over replicates at each epoch.

    Args:
        table: with the columns replicate, epoch, progress and the one asked for.
        column: rows where it is NaN are left out.

    Returns:
        One row per epoch: progress, mean, sd (NaN where n is 1), n.
    """
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


def arm_curves(
    table: pd.DataFrame,
    panels: Sequence[Panel],
    titles: Mapping[str, str] | None = None,
    panel_height: int = 210,
) -> go.Figure:
    """Panels below each other, in each one curve per arm with a band of one standard deviation.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`.
        panel_height: pixels.
    """
    figure = panel_grid(panels)
    for arm in arm_order(table["arm"]):
        style, own = arm_style(arm), where(table, arm=arm)
        shown = _first_with_data(own, panels)
        for row, panel in enumerate(panels, start=1):
            if not has_data(own, [panel.column]):
                continue
            group = safe(arm)
            traces = curve(spread(own, panel.column), panel, style.colour, group, style.dash)
            for trace in traces:
                trace.name = safe(arm_title(arm, titles))
            traces[-1].showlegend = row == shown
            figure.add_traces(traces, rows=row, cols=1)
    return finish_panels(figure, panels, panel_height)


def curve(
    values: pd.DataFrame, panel: Panel, colour: str, group: str, dash: str = "solid"
) -> list[go.Scatter]:
    """The band of one standard deviation, where there is one, and the line over it.

    Args:
        values: from `spread`.
        panel: gives unit and factor.
        group: curves of one group show and hide together.
    """
    x = 100 * values["progress"].to_numpy(np.float64)
    mean = panel.factor * values["mean"].to_numpy(np.float64)
    sd = panel.factor * values["sd"].to_numpy(np.float64)
    line = go.Scatter(
        x=x,
        y=mean,
        customdata=hover_sd(sd, values["n"]),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": colour, "width": 2.2, "dash": dash},
        marker={"color": colour},
        legendgroup=group,
        showlegend=False,
        hovertemplate=_hover(panel),
    )
    known = np.isfinite(sd)
    if not known.any():
        return [line]
    # A share cannot leave 0 to 1, so neither can the band.
    low, high = (np.clip(mean + side * sd, 0, panel.factor)[known] for side in (-1, 1))
    return [band(x[known], low, high, colour, group), line]


def panel_grid(panels: Sequence[Panel]) -> go.Figure:
    """Empty panels below each other with one progress axis."""
    gap = 0.22 / max(len(panels), 2)
    return make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=gap,
        subplot_titles=[f"<b>{safe(panel.title)}</b>" for panel in panels],
    )


def finish_panels(figure: go.Figure, panels: Sequence[Panel], panel_height: int) -> go.Figure:
    """Axes, titles and the look."""
    for row, panel in enumerate(panels, start=1):
        span = None if panel.top is None else [0, panel.top]
        figure.update_yaxes(title_text=panel.unit, range=span, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=len(panels), col=1)
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    height = panel_height * len(panels) + 110
    return styled(figure, height, legend={"y": 1 + 28 / (height - 110)}, hovermode="closest")


def has_data(table: pd.DataFrame, columns: Collection[str]) -> bool:
    """Any of the columns holds a number."""
    return bool(table.reindex(columns=list(columns)).notna().to_numpy().any())


def _first_with_data(own: pd.DataFrame, panels: Sequence[Panel]) -> int:
    """The panel whose curve stands for the arm in the legend."""
    return next((i for i, p in enumerate(panels, 1) if has_data(own, [p.column])), 1)


def _hover(panel: Panel) -> str:
    unit = safe(panel.unit)
    return (
        "%{y:.3g}%{customdata[0]} "
        f"{unit}<br>%{{x:.0f}} % of training, %{{customdata[1]}} replicates"
    )


PROGRESS_PANELS = (
    Panel("flip_rate", "FR: labels that changed", "% of problems"),
    Panel("match_rate", "MR: votes that the label got", "% of votes"),
    Panel("pass_at_1", "pass@1", "% of responses"),
)
LOST_PANELS = (
    Panel(
        "correct_vote_rate_lost",
        "Correct-vote rate on lost problems",
        "% of visits",
        top=100.0,
    ),
)


def training_progress(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """FR, MR and pass@1 of every arm over normalised progress.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`.
    """
    return arm_curves(table, PROGRESS_PANELS, titles)


def lost_votes(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Share of visits to lost problems at which the correct answer still wins the vote.

    Args:
        table: `lab.measures.dynamics` tables made with fates, with the column `arm`.
    """
    return arm_curves(table, LOST_PANELS, titles, panel_height=260)


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
        shares: `lab.measures.dynamics` tables with the column `arm`.
    """
    arms = arm_order(dynamics["arm"])
    figure = multiples([arm_title(arm, titles) for arm in arms], columns=1, row_gap=0.22)
    with_data = {
        panel.column: [a for a in arms if has_data(where(dynamics, arm=a), [panel.column])]
        for panel, *_ in CURVES
    }
    for number, arm in enumerate(arms):
        place = place_of(number, len(arms), 1)
        figure.add_trace(_shade(where(shares, arm=arm), number == 0), **place)
        own = where(dynamics, arm=arm)
        for panel, colour, dash in CURVES:
            if not has_data(own, [panel.column]):
                continue
            traces = curve(spread(own, panel.column), panel, colour, panel.column, dash)
            traces[-1].update(name=panel.title, showlegend=with_data[panel.column][0] == arm)
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
    """
    arms = arm_order(set(real["arm"]) & set(simulated["arm"]))
    figure = multiples([arm_title(arm, titles) for arm in arms], row_gap=0.25, shared_yaxes=True)
    for number, arm in enumerate(arms):
        place = place_of(number, len(arms))
        for (name, dash), table in zip(_DASHES.items(), (real, simulated), strict=True):
            own = where(table, arm=arm)
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
