"""Gains of all arms over a setting that was varied, in small multiples over another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import line_with_band, of_arm, rows
from lab.figures.multiples import multiples, n_rows, place_of
from lab.figures.style import GREY, arm_order, arm_style, arm_title, safe, styled

_PANEL_HEIGHT = 250


def arm_scores(
    table: pd.DataFrame,
    across: str,
    panel: str | None = None,
    titles: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
) -> go.Figure:
    """Points of pass@1 that every arm gains over no training, with the 95 % interval.

    Args:
        table: one row per setting and arm: `across`, `panel`, arm, score (percent), gain, low, high
            (points; the bounds NaN where there is one replicate), n; with `best` (text) the hover
            names the step that a score stands on.
        across: the setting along the axis; its values are equally spaced.
        panel: one small panel for every value of this setting; one panel if left out.
        titles: arm to title, where it differs from `lab.arms`.
        hidden: arms that show only once they are clicked in the legend.
    """
    values = sorted(table[across].unique())
    panels = [None] if panel is None else sorted(table[panel].unique())
    names = [""] if panel is None else [f"{panel} {value:g}" for value in panels]
    figure = multiples(names, column_gap=0.05, shared_yaxes=True)
    for number, value in enumerate(panels):
        own = table if panel is None else rows(table, table[panel].to_numpy() == value)
        for arm in arm_order(own["arm"]):
            traces = _curve(of_arm(own, arm), across, values, arm)
            traces[-1].update(name=safe(arm_title(arm, titles)), showlegend=number == 0)
            for trace in traces:
                trace.visible = "legendonly" if arm in hidden else True
                figure.add_trace(trace, **place_of(number, len(panels)))
    figure.update_xaxes(
        tickvals=list(range(len(values))), ticktext=[f"{value:g}" for value in values]
    )
    figure.update_xaxes(title_text=safe(across), row=n_rows(len(panels)))
    figure.update_yaxes(zeroline=True, zerolinecolor=GREY, zerolinewidth=2)
    figure.update_yaxes(title_text="points of pass@1 gained", col=1)
    figure.update_annotations(font_size=13)
    height = _PANEL_HEIGHT * n_rows(len(panels)) + 130
    return styled(figure, height, legend={"y": 1 + 34 / (height - 90)}, hovermode="closest")


def _curve(own: pd.DataFrame, across: str, values: list[float], arm: str) -> list[go.Scatter]:
    own = own.sort_values(across)
    x = np.array([values.index(value) for value in own[across]], np.float64)
    return line_with_band(
        (x, floats(own, "gain")),
        (floats(own, "low"), floats(own, "high")),
        arm_style(arm),
        safe(arm),
        customdata=[_hover(row, row[across]) for row in own.to_dict("records")],
        hovertemplate=f"{safe(across)} %{{customdata[0]}}: %{{y:+.1f}} points"
        "%{customdata[1]}<extra>%{fullData.name}</extra>",
    )


def _hover(row: dict[Any, Any], value: float) -> list[str]:
    text = ""
    if math.isfinite(row["low"]):
        text = f" [{row['low']:+.1f}, {row['high']:+.1f}] over {row['n']} replicates"
    text += f"<br>final pass@1 {row['score']:.1f} %"
    if row.get("best"):
        text += f"<br>at step {safe(row['best'])}"
    return [f"{value:g}", text]
