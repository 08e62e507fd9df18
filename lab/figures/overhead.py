"""Time per training step by phase, in percent of the baseline's step."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import hover_sd, of_arm, rows
from lab.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    arm_order,
    arm_title,
    safe,
    styled,
    wrapped,
)
from lab.measures.overhead import OTHER, PHASES, STEP
from lab.stats.paired import Estimate, estimate
from lab.stats.words import mean_sd

_COLOURS = dict(
    zip(
        (*PHASES.values(), OTHER),
        (SKY, VERMILLION, GREEN, ORANGE, BLUE, PURPLE, PALE),
        strict=True,
    )
)
_PATTERNS = {"Reading answers": "/", "Guard": "x", "Handing over weights": "."}


def overhead_bars(
    table: pd.DataFrame, against: str = "ttrl", titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Seconds per step by phase as stacked bars, 100 % being the baseline's whole step.

    The whisker is one standard deviation of the whole step over the replicates.

    Args:
        table: from `lab.measures.overhead.step_seconds`.
        against: its baseline.
        titles: arm to title, where it differs from `lab.arms`.
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
        title_text=f"% of the step of {safe(arm_title(against, titles))}",
    )
    height = 150 + 46 * len(arms)
    legend = {"traceorder": "normal", "y": 1 + 8 / height}
    return styled(figure, height, barmode="stack", bargap=0.3, legend=legend)


def _of(table: pd.DataFrame, arm: str, phase: str, column: str) -> Estimate:
    own = of_arm(table, arm)
    return estimate(floats(rows(own, own["phase"].to_numpy() == phase), column))


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
