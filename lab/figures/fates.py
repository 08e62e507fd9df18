"""What became of the problems, one stacked bar per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import plus_minus
from lab.figures.style import (
    FATE_COLOURS,
    FATE_PATTERNS,
    arm_order,
    arm_title,
    styled,
    wrapped,
)
from lab.paired import Estimate, estimate


def fate_bars(shares: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Mean share of each fate per arm, stacked from the best end to the worst.

    Args:
        shares: percent of problems, indexed by (arm, replicate), one column per fate, as
            `lab.tables.metrics` gives them. Arms without known fates are left out.
        titles: arm to title, where it differs from `lab.arms`.
    """
    known = shares.dropna(subset=list(FATE_COLOURS))
    parts = {str(arm): part for arm, part in known.groupby(level="arm")}
    arms = arm_order(parts)
    labels = [wrapped(arm_title(arm, titles)) for arm in arms]
    figure = go.Figure()
    for fate in FATE_COLOURS:
        figure.add_trace(
            fate_segment(fate, labels, [estimate(floats(parts[a], fate)) for a in arms])
        )
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(title_text="% of problems", range=[0, 100])
    height = 130 + 46 * len(arms)
    legend = {"traceorder": "normal", "y": 1 + 8 / height}
    return styled(figure, height, barmode="stack", bargap=0.28, legend=legend)


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
        customdata=plus_minus((v.sd for v in values), (v.n for v in values)),
        marker={
            "color": FATE_COLOURS[fate],
            "line": {"color": "white", "width": 0.8},
            "pattern": pattern | colours,
        },
        hovertemplate=("%{y}: %{x:.1f}%{customdata[0]} % of problems, %{customdata[1]} replicates"),
    )
