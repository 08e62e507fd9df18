"""Paired differences between arms with their intervals; what is within noise is grey."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.compare.tables import Metric
from lab.figures.style import GREY, arm_order, arm_style, arm_title, safe, styled, wrapped
from lab.stats.paired import Estimate
from lab.stats.words import interval

_SIDES = {"high": " (right is better)", "low": " (left is better)", "": ""}


def paired_differences(
    table: pd.DataFrame, metrics: Sequence[Metric], titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Each arm minus the reference: a dot and its 95 % interval, one panel per metric.

    Args:
        table: from `lab.stats.paired.paired_table`: arm, metric, mean, low, high, n, verdict. Arms
            without a measured pair are left out.
        metrics: panels from top to bottom; their tables are in percent, so differences are points.
        titles: arm to title, where it differs from `lab.arms`.
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
    figure.update_xaxes(zeroline=True, zerolinecolor=GREY, zerolinewidth=2)
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
