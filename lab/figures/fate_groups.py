"""Fates of the problems on several models and data sets: grouped stacked bars."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.columns import floats
from lab.figures.fates import RATIO_MARGIN, TEXT, fate_segment, ratio_marks
from lab.figures.style import FATE_COLOURS, arm_order, arm_title, safe, styled, wrapped
from lab.stats.paired import estimate

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
        for fate in FATE_COLOURS:
            own = [part.xs(arm, level="arm") for arm in arms[name]]
            bars = fate_segment(fate, labels, [estimate(floats(p, fate)) for p in own])
            bars.update(legendgroup=fate, showlegend=row == 1)
            figure.add_trace(bars, row=row, col=1)
        if "L/D" in part:
            ratios = [estimate(floats(part.xs(arm, level="arm"), "L/D")) for arm in arms[name]]
            figure.add_trace(ratio_marks(labels, ratios), row=row, col=1)
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text="% of problems", row=max(len(groups), 1))
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    legend = {"traceorder": "normal", "y": 1 + 34 / height}
    return styled(
        figure,
        height,
        barmode="stack",
        bargap=0.22,
        legend=legend,
        uniformtext=TEXT,
        margin={"r": RATIO_MARGIN},
    )
