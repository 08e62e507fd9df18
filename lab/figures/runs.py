"""FR and pass@1 of every single run: a thin line per seed under the mean of its arm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats, ints
from lab.figures.curves import (
    Panel,
    finish_panels,
    has_data,
    of_arm,
    panel_grid,
    rows,
    spread,
)
from lab.figures.style import arm_order, arm_style, arm_title, safe, translucent

RUN_PANELS = (
    Panel("flip_rate", "FR: labels that changed", "% of problems"),
    Panel("pass_at_1", "pass@1", "% of responses"),
)
MOST_RUNS = 40
"""Thin lines per arm: more cannot be distinguished and make the page heavy."""


def run_lines(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """FR and pass@1 over normalised progress, one thin line per run and the mean on top.

    Of an arm with more than `MOST_RUNS` replicates the first so many are drawn, and its legend
    says so; the mean is over all.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    figure = panel_grid(RUN_PANELS)
    for arm in arm_order(table["arm"]):
        own, style = of_arm(table, arm), arm_style(arm)
        name = safe(arm_title(arm, titles)) + _count(own)
        drawn = [panel for panel in RUN_PANELS if has_data(own, [panel.column])]
        for panel in drawn:
            row = RUN_PANELS.index(panel) + 1
            figure.add_trace(_thin(own, panel, style.colour, arm, name), row=row, col=1)
            mean = _mean(own, panel, style.colour, style.dash, arm, name)
            mean.showlegend = panel is drawn[0]
            figure.add_trace(mean, row=row, col=1)
    return finish_panels(figure, RUN_PANELS, 240)


def _count(own: pd.DataFrame) -> str:
    n = len(np.unique(ints(own, "replicate")))
    return f" ({n} runs)" if n <= MOST_RUNS else f" ({MOST_RUNS} of {n} runs)"


def _thin(own: pd.DataFrame, panel: Panel, colour: str, arm: str, name: str) -> go.Scatter:
    """All runs of an arm as one trace, broken between the runs."""
    own = rows(own, np.isfinite(floats(own, panel.column)))
    order = np.lexsort((ints(own, "epoch"), ints(own, "replicate")))
    numbers, starts = np.unique(ints(own, "replicate")[order], return_index=True)
    ends = [*starts[1:], len(order)]
    progress = 100 * floats(own, "progress")[order]
    values = panel.factor * floats(own, panel.column)[order]
    x: list[float | None] = []
    y: list[float | None] = []
    runs: list[int | None] = []
    for replicate, start, end in list(zip(numbers, starts, ends, strict=True))[:MOST_RUNS]:
        x += [*progress[start:end].tolist(), None]
        y += [*values[start:end].tolist(), None]
        runs += [int(replicate)] * (end - start) + [None]
    return go.Scatter(
        x=x,
        y=y,
        customdata=runs,
        mode="lines",
        connectgaps=False,
        line={"color": translucent(colour, 0.35), "width": 0.9},
        name=name,
        legendgroup=safe(arm),
        showlegend=False,
        hovertemplate=(
            f"%{{y:.3g}} {safe(panel.unit)}<br>%{{x:.0f}} % of training, replicate %{{customdata}}"
        ),
    )


def _mean(
    own: pd.DataFrame, panel: Panel, colour: str, dash: str, arm: str, name: str
) -> go.Scatter:
    values = spread(own, panel.column)
    return go.Scatter(
        x=100 * floats(values, "progress"),
        y=panel.factor * floats(values, "mean"),
        customdata=values["n"].to_numpy(),
        mode="lines",
        line={"color": colour, "width": 2.6, "dash": dash},
        name=name,
        legendgroup=safe(arm),
        hovertemplate=(
            f"mean %{{y:.3g}} {safe(panel.unit)}<br>%{{x:.0f}} % of training, "
            "%{customdata} replicates"
        ),
    )
