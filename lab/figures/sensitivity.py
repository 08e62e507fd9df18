"""Sensitivity to the guard's settings, values that are one and the same algorithm marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import floats, select, where
from lab.compare.tables import METRICS
from lab.figures.style import (
    BLACK,
    PALE,
    Place,
    arm_order,
    arm_style,
    arm_title,
    hover_sd,
    line_with_band,
    multiples,
    place_of,
    safe,
    styled,
)

_PANEL_HEIGHT = 230
NAMES = {"guard.tau_FR": "tau_FR (FRS)", "guard.W": "W (RCSU)", "guard.beta_max": "beta_max (MPS)"}


def sensitivity_curves(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Every metric over every setting, one panel each, with one standard deviation.

    Values are equally spaced. A grey area joins values that are one and the same algorithm: what
    differs within it is noise. The dotted line is the default.

    Args:
        table: from `lab.measures.sensitivity.sensitivity`.
    """
    units = {metric.name: metric for metric in METRICS}
    pairs = list(dict.fromkeys(zip(table["setting"], table["metric"], strict=True)))
    names = {name: units[name].title if name in units else name for _, name in pairs}
    heads = [f"{names[metric]} over {NAMES.get(setting, setting)}" for setting, metric in pairs]
    figure = multiples(heads, columns=1, row_gap=0.3)
    for number, (setting, metric) in enumerate(pairs):
        place = place_of(number, len(pairs), 1)
        chosen = (table["setting"] == setting) & (table["metric"] == metric)
        own = select(table, chosen.to_numpy())
        values = sorted(own["value"].unique())
        unit = units[metric].unit if metric in units else ""
        for arm in arm_order(own["arm"]):
            traces = _curve(where(own, arm=arm), values, arm, unit)
            traces[-1].update(name=safe(arm_title(arm, titles)), showlegend=number == 0)
            for trace in traces:
                figure.add_trace(trace, **place)
        _mark(figure, own, values, place)
        figure.update_xaxes(
            tickvals=list(range(len(values))), ticktext=[f"{v:g}" for v in values], **place
        )
        figure.update_yaxes(title_text=safe(unit), **place)
    figure.update_annotations(font_size=13)
    height = _PANEL_HEIGHT * len(pairs) + 90
    return styled(figure, height, legend={"y": 1 + 34 / (height - 90)}, hovermode="closest")


def plateaus(own: pd.DataFrame) -> list[list[float]]:
    """Groups of at least two values that are one algorithm, ascending.

    Args:
        own: rows of one setting.
    """
    groups = own.groupby("plateau")["value"].unique()
    return sorted(sorted(map(float, values)) for values in groups if len(values) > 1)


def _mark(figure: go.Figure, own: pd.DataFrame, values: Sequence[float], place: Place) -> None:
    at: Any = place  # plotly declares text here and takes numbers
    for same in plateaus(own):
        ends = [values.index(same[0]) - 0.3, values.index(same[-1]) + 0.3]
        figure.add_vrect(
            x0=ends[0],
            x1=ends[1],
            fillcolor=PALE,
            opacity=0.35,
            line_width=0,
            layer="below",
            **at,
        )
    standard = select(own, own["default"].to_numpy(bool))
    if len(standard):
        default = values.index(standard["value"].iloc[0])
        figure.add_vline(x=default, line={"color": BLACK, "width": 1, "dash": "dot"}, **at)


def _curve(own: pd.DataFrame, values: Sequence[float], arm: str, unit: str) -> list[go.Scatter]:
    own = own.sort_values("value")
    x = np.array([values.index(value) for value in own["value"]], np.float64)
    mean, sd = floats(own, "mean"), floats(own, "sd")
    spread = hover_sd(sd, own["n"])
    return line_with_band(
        (x, mean),
        (mean - sd, mean + sd),
        arm_style(arm),
        safe(arm),
        customdata=[
            [f"{value:g}", *row, _twins(own, plateau, value)]
            for value, row, plateau in zip(own["value"], spread, own["plateau"], strict=True)
        ],
        hovertemplate=(
            f"at %{{customdata[0]}}: %{{y:.3g}}%{{customdata[1]}} {safe(unit)}, %{{customdata[2]}} "
            "replicates%{customdata[3]}<extra>%{fullData.name}</extra>"
        ),
    )


def _twins(own: pd.DataFrame, plateau: int, value: float) -> str:
    same = own["value"][(own["plateau"] == plateau) & (own["value"] != value)]
    return f"<br>the same algorithm as {', '.join(f'{v:g}' for v in same)}" if len(same) else ""
