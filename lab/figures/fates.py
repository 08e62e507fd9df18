"""Fates of the problems, one stacked bar per arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.columns import floats
from lab.figures.curves import hover_sd
from lab.figures.style import (
    FATE_COLOURS,
    FATE_PATTERNS,
    INK,
    arm_order,
    arm_title,
    safe,
    styled,
    wrapped,
)
from lab.stats.paired import Estimate, estimate
from lab.stats.words import mean_sd, plus_minus

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
        titles: arm to title, where it differs from `lab.arms`.
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
        legend={"traceorder": "normal", "y": 1 + legend_gap / height},
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
        fate: gives colour, pattern and name.
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


_BAR, _HEAD = 38, 46
"""Pixels of a bar with its gap, and of a group's heading."""


def fate_groups(shares: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Mean share of each fate, a group of bars per comparison and a bar per arm.

    Args:
        shares: percent of problems, indexed by (comparison, arm, replicate), one column per fate.
            Arms without known fates are left out.
        titles: arm to title, where it differs from `lab.arms`.
    """
    known = shares.dropna(subset=list(FATE_COLOURS))
    groups = {str(name): part for name, part in known.groupby(level="comparison", sort=False)}
    arms = {name: arm_order(part.index.get_level_values("arm")) for name, part in groups.items()}
    n_bars = [len(own) for own in arms.values()]
    height = _BAR * sum(n_bars) + _HEAD * len(groups) + 120
    figure = make_subplots(
        rows=max(len(groups), 1),
        cols=1,
        shared_xaxes=True,
        row_heights=n_bars or None,
        vertical_spacing=min(_HEAD / height, 0.9 / max(len(groups), 1)),
        subplot_titles=[f"<b>{safe(name)}</b>" for name in groups],
    )
    for row, (name, part) in enumerate(groups.items(), start=1):
        labels = [wrapped(arm_title(arm, titles), 18) for arm in arms[name]]
        for trace in _bars([part.xs(arm, level="arm") for arm in arms[name]], labels):
            if isinstance(trace, go.Bar):
                trace.update(legendgroup=trace.name, showlegend=row == 1)
            figure.add_trace(trace, row=row, col=1)
    figure.update_xaxes(title_text="% of problems", row=max(len(groups), 1))
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    return _stacked(figure, height, bargap=0.22, legend_gap=34)
