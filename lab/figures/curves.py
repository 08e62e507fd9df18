"""Curves over training with their spread: the parts that several figures share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.columns import Bools, Floats, floats, ints
from lab.figures.style import ArmStyle, arm_order, arm_style, arm_title, safe, styled, translucent

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


def rows(table: pd.DataFrame, chosen: Bools) -> pd.DataFrame:
    """The rows at which `chosen` is true."""
    return table.take(np.flatnonzero(chosen))


def of_arm(table: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The rows of one arm."""
    return rows(table, table["arm"].to_numpy() == arm)


def arm_curves(
    table: pd.DataFrame,
    panels: Sequence[Panel],
    titles: Mapping[str, str] | None = None,
    panel_height: int = 210,
) -> go.Figure:
    """Panels below each other, in each one curve per arm with a band of one standard deviation.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`.
        panels: from top to bottom.
        titles: name of an arm to its title, where it differs from `lab.arms`.
        panel_height: pixels.
    """
    figure = panel_grid(panels)
    for arm in arm_order(table["arm"]):
        style, own = arm_style(arm), of_arm(table, arm)
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
        colour: hex.
        group: curves of one group show and hide together.
        dash: plotly's name of it.
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


def hover_sd(sd: Iterable[float], n: Iterable[int]) -> list[list[str | int]]:
    """Spread and number of replicates as a hover shows them; no spread of one replicate."""
    return [[f" ± {s:.2g}" if math.isfinite(s) else "", int(k)] for s, k in zip(sd, n, strict=True)]


def _first_with_data(own: pd.DataFrame, panels: Sequence[Panel]) -> int:
    """The panel whose curve stands for the arm in the legend."""
    return next((i for i, p in enumerate(panels, 1) if has_data(own, [p.column])), 1)


def _hover(panel: Panel) -> str:
    unit = safe(panel.unit)
    return (
        "%{y:.3g}%{customdata[0]} "
        f"{unit}<br>%{{x:.0f}} % of training, %{{customdata[1]}} replicates"
    )


def line_with_band(
    points: tuple[Floats, Floats],
    bounds: tuple[Floats, Floats],
    style: ArmStyle,
    group: str,
    **options: Any,
) -> list[go.Scatter]:
    """The band between two bounds where both are known, and the line with markers over it.

    Args:
        points: x and y.
        bounds: lower and upper bound at each x.
        style: colour, dash and symbol.
        group: curves of one group show and hide together.
        options: more of plotly's for the line.
    """
    line = go.Scatter(
        x=points[0],
        y=points[1],
        line={"color": style.colour, "width": 2.2, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 7},
        legendgroup=group,
        **{"mode": "lines+markers", **options},
    )
    known = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
    if not known.any():
        return [line]
    x, low, high = (values[known] for values in (points[0], *bounds))
    return [band(x, low, high, style.colour, group), line]


def band(x: Floats, low: Floats, high: Floats, colour: str, group: str) -> go.Scatter:
    """The area between two curves; it shows and hides with the curves of its group."""
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        mode="lines",
        fill="toself",
        fillcolor=translucent(colour, 0.15),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
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
        titles: arm to title, where it differs from `lab.arms`.
    """
    return arm_curves(table, PROGRESS_PANELS, titles)


def lost_votes(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Share of visits to lost problems at which the correct answer still wins the vote.

    Args:
        table: `lab.measures.dynamics` tables made with fates, with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    return arm_curves(table, LOST_PANELS, titles, panel_height=260)
