"""Outcome of training: fates, changes, paired differences and the cost of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.base.arms import BASELINE
from lab.base.columns import floats, select, where
from lab.base.stats import Estimate, estimate, interval, mean_sd, plus_minus
from lab.figures.style import (
    BLACK,
    BLUE,
    FATE_COLOURS,
    FATE_PATTERNS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    arm_order,
    arm_style,
    arm_title,
    hover_sd,
    multiples,
    n_rows,
    place_of,
    safe,
    styled,
    translucent,
    wrapped,
)
from lab.measures.dynamics import OTHER, PHASES, STEP
from lab.measures.metrics import Metric

TEXT = {"minsize": 9, "mode": "hide"}
"""Plotly's `uniformtext`: numbers that do not fit into their segment are left out."""
RATIO_MARGIN = 74
"""Pixels right of the bars for L/D."""
_DARK = ("Learned",)


def fate_bars(shares: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Mean share of each fate per arm, stacked from the best end to the worst.

    A segment holds its mean and one standard deviation over the replicates where there is room.

    Args:
        shares: percent of problems, indexed by (arm, replicate), one column per fate and `L/D`, as
            `lab.compare.tables.metrics` gives them. Arms without known fates are left out.
    """
    known = shares.dropna(subset=list(FATE_COLOURS))
    parts = {str(arm): part for arm, part in known.groupby(level="arm")}
    arms = arm_order(parts)
    labels = [wrapped(arm_title(arm, titles)) for arm in arms]
    figure = go.Figure(list(_bars([parts[arm] for arm in arms], labels)))
    figure.update_xaxes(title_text="% of problems")
    return _stacked(figure, 150 + 46 * len(arms), bargap=0.28, legend_gap=26)


def _bars(tables: Sequence[pd.DataFrame], labels: Sequence[str]) -> Iterator[go.Bar | go.Scatter]:
    """The segments of one stacked bar per table, and L/D where it is a column."""
    for fate in FATE_COLOURS:
        yield fate_segment(fate, labels, [estimate(floats(table, fate)) for table in tables])
    if tables and "L/D" in tables[0]:
        yield ratio_marks(labels, [estimate(floats(table, "L/D")) for table in tables])


def _stacked(figure: go.Figure, height: int, bargap: float, legend_gap: int) -> go.Figure:
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(range=[0, 100])
    return styled(
        figure,
        height,
        barmode="stack",
        bargap=bargap,
        legend={"traceorder": "normal", "y": 1 + legend_gap / height, "maxheight": 1},
        uniformtext=TEXT,
        margin={"r": RATIO_MARGIN},
    )


def ratio_marks(labels: Sequence[str], ratios: Sequence[Estimate]) -> go.Scatter:
    """L/D with its spread at the end of stacked bars, to which `RATIO_MARGIN` leaves room.

    Args:
        labels: of the bars, escaped.
        ratios: Learned by Degraded, one per bar; n = 0 where nothing degraded.
    """
    return go.Scatter(
        x=[100] * len(ratios),
        y=list(labels),
        mode="text",
        text=[_ratio(value) for value in ratios],
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        showlegend=False,
        name="L/D",
        hoverinfo="skip",
    )


def _ratio(value: Estimate) -> str:
    if value.n == 0:
        return " L/D: none<br> degraded"
    return f" L/D {mean_sd(value.mean, value.sd, 2).replace(' ± ', '<br> ±')}"


def fate_segment(fate: str, labels: Sequence[str], values: Sequence[Estimate]) -> go.Bar:
    """One fate's part of stacked bars.

    Args:
        labels: of the bars, escaped.
        values: percent of problems, one per bar.
    """
    pattern = {"shape": FATE_PATTERNS.get(fate, ""), "fillmode": "overlay", "size": 6}
    colours = {"fgcolor": "white", "fgopacity": 0.55}
    return go.Bar(
        name=fate,
        orientation="h",
        x=[value.mean for value in values],
        y=list(labels),
        customdata=hover_sd((v.sd for v in values), (v.n for v in values)),
        text=[_inside(value) for value in values],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 10, "color": "white" if fate in _DARK else INK},
        marker={
            "color": FATE_COLOURS[fate],
            "line": {"color": "white", "width": 0.8},
            "pattern": pattern | colours,
        },
        hovertemplate=("%{y}: %{x:.1f}%{customdata[0]} % of problems, %{customdata[1]} replicates"),
    )


def _inside(value: Estimate) -> str:
    if value.n == 0 or round(value.mean) == 0:
        return ""
    return f"{value.mean:.0f}{plus_minus(value.sd).replace(' ± ', '<br>±')}"


_PANEL_HEIGHT = 300
_LARGEST = 30
"""Pixels of the largest bubble's diameter; the area is the share."""
_SMALLEST = 3
_SYMBOLS = {"Marginal Degraded": "diamond", "Degraded": "square", "Unclassified": "cross"}


def label_migration(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Initial against final label accuracy, a panel per arm; a bubble's area is its problems.

    Args:
        table: `lab.measures.fate.migration` tables with the column `arm`.
    """
    arms = arm_order(table["arm"])
    figure = multiples([arm_title(arm, titles) for arm in arms], shared_yaxes=True, column_gap=0.05)
    largest = float(floats(table, "share").max())
    legend: set[str] = set()
    for panel, arm in enumerate(arms):
        own, place = where(table, arm=arm), place_of(panel, len(arms))
        figure.add_trace(_unchanged(), **place)
        for fate in FATE_COLOURS:
            part = select(own, own["fate"].to_numpy() == fate)
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


_SIDES = {"high": " (right is better)", "low": " (left is better)", "": ""}


def paired_differences(
    table: pd.DataFrame, metrics: Sequence[Metric], titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Each arm minus the reference: a dot and its 95 % interval, one panel per metric.

    Args:
        table: from `lab.base.stats.paired_table`: arm, metric, mean, low, high, n, verdict. Arms
            without a measured pair are left out.
        metrics: panels from top to bottom; their tables are in percent, so differences are points.
    """
    pairs = [pair for pair in table.to_dict("records") if pair["n"] > 0]
    arms = arm_order(pair["arm"] for pair in pairs)
    labels = {arm: wrapped(arm_title(arm, titles)) for arm in arms}
    figure = make_subplots(
        rows=len(metrics),
        cols=1,
        vertical_spacing=0.36 / max(len(metrics), 2),
        subplot_titles=[f"<b>{safe(metric.title)}</b>" for metric in metrics],
    )
    for row, metric in enumerate(metrics, start=1):
        for pair in pairs:
            if pair["metric"] == metric.name:
                figure.add_trace(_dot(pair, labels[pair["arm"]]), row=row, col=1)
        figure.update_xaxes(title_text=f"points{_SIDES[metric.better]}", row=row, col=1)
    order = list(labels.values())[::-1]
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=order,
        range=[-0.6, len(order) - 0.2],
        ticks="",
        showgrid=False,
    )
    figure.update_xaxes(rangemode="tozero", zeroline=True, zerolinecolor=GREY, zerolinewidth=2)
    figure.update_annotations(x=0, xanchor="left", yshift=4, font_size=13)
    height = 50 + len(metrics) * (90 + 44 * len(arms))
    return styled(figure, height, showlegend=False, hovermode="closest")


def _dot(pair: dict[Any, Any], label: str) -> go.Scatter:
    """One difference; hollow and grey where its interval holds zero or there is none."""
    mean, low, high = (float(pair[name]) for name in ("mean", "low", "high"))
    known, shown = math.isfinite(low), not _estimate(pair).within_noise
    style = arm_style(pair["arm"])
    colour = style.colour if shown else GREY
    symbol = style.symbol.removesuffix("-open")
    return go.Scatter(
        x=[mean],
        y=[label],
        mode="markers+text",
        text=[f"{round(mean, 1) + 0.0:+.1f}"],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        marker={
            "color": colour,
            "size": 11,
            "symbol": symbol if shown else f"{symbol}-open",
            "line": {"width": 2, "color": colour},
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - mean] if known else [],
            "arrayminus": [mean - low] if known else [],
            "color": colour,
            "thickness": 2,
            "width": 5,
            "visible": known,
        },
        customdata=[[interval(low, high), safe(pair["verdict"])]],
        hovertemplate="%{x:+.1f} points, %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def _estimate(pair: dict[Any, Any]) -> Estimate:
    return Estimate(**{name: pair[name] for name in ("mean", "sd", "low", "high", "n")})


_COLOURS = dict(
    zip(
        (*PHASES.values(), OTHER),
        (SKY, VERMILLION, GREEN, ORANGE, BLUE, PURPLE, PALE),
        strict=True,
    )
)
_PATTERNS = {"Reading answers": "/", "Guard": "x", "Handing over weights": "."}


def overhead_bars(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Seconds per step by phase as stacked bars, 100 % being the baseline's whole step.

    The whisker is one standard deviation of the whole step over the replicates.

    Args:
        table: from `lab.measures.dynamics.step_seconds`.
    """
    arms = arm_order(table["arm"])
    labels = [wrapped(arm_title(arm, titles)) for arm in arms]
    figure = go.Figure()
    for phase, colour in _COLOURS.items():
        relative = [_of(table, arm, phase, "relative") for arm in arms]
        if any(value.mean > 0 for value in relative):
            seconds = [_of(table, arm, phase, "seconds") for arm in arms]
            figure.add_trace(_segment(phase, colour, labels, relative, seconds))
    whole = [_of(table, arm, STEP, "relative") for arm in arms]
    seconds = [_of(table, arm, STEP, "seconds") for arm in arms]
    figure.add_trace(_whole(labels, whole, seconds))
    figure.add_trace(_changes(labels, whole))
    figure.add_vline(x=100, line={"color": GREY, "width": 1, "dash": "dot"})
    figure.update_yaxes(autorange="reversed", ticks="")
    ends = [value.mean + (value.sd if value.has_interval else 0) for value in whole if value.n]
    figure.update_xaxes(
        range=[0, 1.55 * max(ends, default=100.0)],
        title_text=f"% of the step of {safe(arm_title(BASELINE, titles))}",
    )
    height = 150 + 46 * len(arms)
    legend = {"traceorder": "normal", "y": 1 + 8 / height}
    return styled(figure, height, barmode="stack", bargap=0.3, legend=legend)


def _of(table: pd.DataFrame, arm: str, phase: str, column: str) -> Estimate:
    own = where(table, arm=arm)
    return estimate(floats(select(own, own["phase"].to_numpy() == phase), column))


def _segment(
    phase: str,
    colour: str,
    labels: list[str],
    relative: list[Estimate],
    seconds: list[Estimate],
) -> go.Bar:
    return go.Bar(
        name=phase,
        orientation="h",
        x=[value.mean for value in relative],
        y=labels,
        customdata=_custom(seconds),
        marker={
            "color": colour,
            "line": {"color": "white", "width": 0.8},
            "pattern": {"shape": _PATTERNS.get(phase, ""), "fillmode": "overlay", "size": 6},
        },
        hovertemplate=(
            "%{y}: %{customdata[0]:.3g}%{customdata[1]} s per step, %{x:.1f} %, "
            "%{customdata[2]} replicates"
        ),
    )


def _whole(labels: list[str], relative: list[Estimate], seconds: list[Estimate]) -> go.Scatter:
    sds = [value.sd if value.has_interval else 0.0 for value in relative]
    return go.Scatter(
        name=STEP,
        x=[value.mean for value in relative],
        y=labels,
        mode="markers",
        marker={"color": BLACK, "symbol": "line-ns", "size": 12, "line": {"width": 2}},
        error_x={"type": "data", "array": sds, "color": BLACK, "thickness": 1.5, "width": 4},
        customdata=_custom(seconds),
        hovertemplate=(
            "%{y}: %{customdata[0]:.3g}%{customdata[1]} s per step, %{x:.1f} %, "
            "%{customdata[2]} replicates"
        ),
    )


def _changes(labels: list[str], relative: list[Estimate]) -> go.Scatter:
    """Change of the whole step's time with its standard deviation, at the whisker's end."""
    return go.Scatter(
        x=[value.mean + (value.sd if value.has_interval else 0) for value in relative],
        y=labels,
        mode="text",
        text=[_change(value) for value in relative],
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        showlegend=False,
        name="change",
        hoverinfo="skip",
    )


def _change(value: Estimate) -> str:
    if value.n == 0:
        return ""
    return f" {mean_sd(value.mean - 100, value.sd, signed=True)} %"


def _custom(seconds: list[Estimate]) -> list[list[float | str | int]]:
    spread = hover_sd((v.sd for v in seconds), (v.n for v in seconds))
    return [[value.mean, *row] for value, row in zip(seconds, spread, strict=True)]
