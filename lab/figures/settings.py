"""Gains of all arms over a setting that was varied, in small multiples over another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.columns import floats
from lab.figures.curves import band, of_arm, rows
from lab.figures.style import GREY, arm_order, arm_style, arm_title, safe, styled

_PANEL_HEIGHT = 250
_COLUMNS = 2


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
    n_columns = min(_COLUMNS, len(panels))
    n_rows = math.ceil(len(panels) / n_columns)
    names = [] if panel is None else [f"<b>{safe(panel)} {value:g}</b>" for value in panels]
    figure = make_subplots(
        rows=n_rows,
        cols=n_columns,
        shared_yaxes=True,
        subplot_titles=names,
        horizontal_spacing=0.05,
        vertical_spacing=0.3 / max(n_rows, 2),
    )
    for place, value in enumerate(panels):
        own = table if panel is None else rows(table, table[panel].to_numpy() == value)
        row, col = place // n_columns + 1, place % n_columns + 1
        for arm in arm_order(own["arm"]):
            traces = _curve(of_arm(own, arm), across, values, arm)
            traces[-1].update(name=safe(arm_title(arm, titles)), showlegend=place == 0)
            for trace in traces:
                trace.visible = "legendonly" if arm in hidden else True
                figure.add_trace(trace, row=row, col=col)
    figure.update_xaxes(
        tickvals=list(range(len(values))), ticktext=[f"{value:g}" for value in values]
    )
    figure.update_xaxes(title_text=safe(across), row=n_rows)
    figure.update_yaxes(zeroline=True, zerolinecolor=GREY, zerolinewidth=2)
    figure.update_yaxes(title_text="points of pass@1 gained", col=1)
    figure.update_annotations(font_size=13)
    height = _PANEL_HEIGHT * n_rows + 130
    return styled(figure, height, legend={"y": 1 + 34 / (height - 90)}, hovermode="closest")


def _curve(own: pd.DataFrame, across: str, values: list[float], arm: str) -> list[go.Scatter]:
    own = own.sort_values(across)
    style, group = arm_style(arm), safe(arm)
    x = np.array([values.index(value) for value in own[across]], np.float64)
    low, high = floats(own, "low"), floats(own, "high")
    line = go.Scatter(
        x=x,
        y=floats(own, "gain"),
        customdata=[_hover(row, row[across]) for row in own.to_dict("records")],
        mode="lines+markers",
        line={"color": style.colour, "width": 2.2, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 7},
        legendgroup=group,
        hovertemplate=f"{safe(across)} %{{customdata[0]}}: %{{y:+.1f}} points"
        "%{customdata[1]}<extra>%{fullData.name}</extra>",
    )
    known = np.isfinite(low)
    bands = [band(x[known], low[known], high[known], style.colour, group)] if known.any() else []
    return [*bands, line]


def _hover(row: dict[Any, Any], value: float) -> list[str]:
    text = ""
    if math.isfinite(row["low"]):
        text = f" [{row['low']:+.1f}, {row['high']:+.1f}] over {row['n']} replicates"
    text += f"<br>final pass@1 {row['score']:.1f} %"
    if row.get("best"):
        text += f"<br>at step {safe(row['best'])}"
    return [f"{value:g}", text]
