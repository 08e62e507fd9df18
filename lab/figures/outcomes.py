"""Outcomes: fates, paired differences, sweeps, costs, errors of a calibrated simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.arms import BASELINE, arm_order
from lab.base.columns import floats, groups, require, unique, where
from lab.base.stats import Estimate, estimate, interval, mean_sd, plus_minus
from lab.figures import style
from lab.figures.style import Titles, arm_style, arm_title, multiples, points, safe, styled
from lab.measures import Metric
from lab.measures.dynamics import STEP

_SIDES = {"high": " (right is better)", "low": " (left is better)", "": ""}
WIDE = 20
"""Largest by smallest value of a setting from which on its axis is logarithmic."""
KIND_TITLES = {
    "ttrl": "Fitted TTRL rows",
    "guard": "Predicted guard rows",
    "shift": "Printed TTRL + the model's effect",
    "matched": "Guard rows by matched effort",
    "copy": "Guard rows by copying TTRL's",
}
_SHORT = {
    "Degraded": "Degr.",
    "Marginal Degraded": "Marg.<br>degr.",
    "Learned": "Lear-<br>ned",
    "Stable Always Right": "Stable<br>right",
    "Always Wrong": "Always<br>wrong",
}


def fate_bars(shares: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Mean share of each fate per arm, stacked from the best end to the worst.

    A segment holds its mean and one standard deviation over the replicates where there is room;
    L/D, where it is a column, stands at the end of the bar.

    Args:
        shares: percent of problems, indexed by (arm, replicate), one column per fate and `L/D`, as
            `lab.compare.tables.metrics` gives them. Arms without known fates are left out.
    """
    known = shares.dropna(subset=list(style.FATE_COLOURS))
    parts = {str(arm): part for arm, part in known.groupby(level="arm")}
    arms = arm_order(parts)
    labels = [style.wrapped(arm_title(arm, titles)) for arm in arms]
    figure = go.Figure()
    for fate, colour in style.FATE_COLOURS.items():
        estimates = [estimate(floats(parts[arm], fate)) for arm in arms]
        pattern = style.FATE_PATTERNS.get(fate, "")
        bar = _segment(fate, labels, estimates, colour, pattern).update(
            marker_pattern={"fgcolor": "white", "fgopacity": 0.55},
            customdata=style.hover_sd((v.sd, v.n) for v in estimates),
            text=[_inside(value) for value in estimates],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 10, "color": "white" if fate == "Learned" else style.INK},
            hovertemplate=(
                "%{y}: %{x:.1f}%{customdata[0]} % of problems, %{customdata[1]} replicates"
            ),
        )
        figure.add_trace(bar)
    if arms and "L/D" in shares:
        texts = [_ratio(estimate(floats(parts[arm], "L/D"))) for arm in arms]
        figure.add_trace(_beside([100] * len(arms), labels, texts, "L/D"))
    height = 150 + 46 * len(arms)
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(title_text="% of problems", range=[0, 100])
    return styled(
        figure,
        height,
        barmode="stack",
        bargap=0.28,
        legend={"traceorder": "normal", "y": 1 + 26 / height, "maxheight": 1},
        uniformtext={"minsize": 9, "mode": "hide"},  # what does not fit is left out
        margin={"r": 74},  # room for L/D
    )


def _segment(
    name: str, labels: list[str], values: list[Estimate], colour: str, pattern: str
) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        x=[value.mean for value in values],
        y=labels,
        error_x={"array": [value.sd for value in values], "visible": False},  # no room; for files
        marker_color=colour,
        marker_line={"color": "white", "width": 0.8},
        marker_pattern={"fillmode": "overlay", "size": 6, "shape": pattern},
    )


def _beside(x: Sequence[float], labels: list[str], texts: list[str], name: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=labels,
        mode="text",
        text=texts,
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        showlegend=False,
        name=name,
        hoverinfo="skip",
    )


def _ratio(value: Estimate) -> str:
    ratio = mean_sd(value.mean, value.sd, 2).replace(" ± ", "<br> ±")
    return f" L/D {ratio}" if value.n else " L/D: none<br> degraded"


def _inside(value: Estimate) -> str:
    if round(value.mean) == 0:
        return ""
    return f"{value.mean:.0f}{plus_minus(value.sd).replace(' ± ', '<br>±')}"


def paired_differences(
    table: pd.DataFrame, metrics: Sequence[Metric], titles: Titles = None
) -> go.Figure:
    """Each arm minus the reference: a dot and its 95 % interval, one panel per metric.

    Args:
        table: from `lab.base.stats.paired_table`: arm, metric, mean, low, high, n, verdict. Arms
            without a measured pair are left out.
        metrics: panels from top to bottom; their tables are in percent, so differences are points.
    """
    pairs = [pair for pair in table.to_dict("records") if pair["n"] > 0]
    arms = arm_order(pair["arm"] for pair in pairs)
    labels = {arm: style.wrapped(arm_title(arm, titles)) for arm in arms}
    figure, places = multiples([metric.title for metric in metrics], columns=1, row_gap=0.36)
    for metric, place in zip(metrics, places, strict=True):
        for pair in pairs:
            if pair["metric"] == metric.name:
                figure.add_trace(_dot(pair, labels[pair["arm"]]), **place)
        figure.update_xaxes(title_text=f"points{_SIDES[metric.better]}", **place)
    order = list(labels.values())[::-1]
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=order,
        range=[-0.6, len(order) - 0.2],
        ticks="",
        showgrid=False,
    )
    figure.update_xaxes(rangemode="tozero", zeroline=True)
    figure.update_xaxes(zerolinecolor=style.GREY, zerolinewidth=2)
    figure.update_annotations(yshift=4)
    height = 50 + len(metrics) * (90 + 44 * len(arms))
    return styled(figure, height, showlegend=False, hovermode="closest")


def _dot(pair: dict[Any, Any], label: str) -> go.Scatter:
    """One difference; hollow and grey where its interval holds zero or there is none."""
    value = Estimate(**{name: pair[name] for name in ("mean", "sd", "low", "high", "n")})
    known, shown = value.has_interval, not value.within_noise
    look = arm_style(pair["arm"])
    colour = look.colour if shown else style.GREY
    symbol = look.symbol.removesuffix("-open")
    return go.Scatter(
        x=[value.mean],
        y=[label],
        mode="markers+text",
        text=[f"{round(value.mean, 1) + 0.0:+.1f}"],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        marker_color=colour,
        marker_size=11,
        marker_symbol=symbol if shown else f"{symbol}-open",
        marker_line={"width": 2, "color": colour},
        error_x={"type": "data", "symmetric": False, "visible": known, "thickness": 2, "width": 5},
        error_x_array=[value.high - value.mean] if known else [],
        error_x_arrayminus=[value.mean - value.low] if known else [],
        error_x_color=colour,
        customdata=[[interval(value.low, value.high), safe(pair["verdict"])]],
        hovertemplate="%{x:+.1f} points, %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def swept(rows: pd.DataFrame, axis: str, metric: Metric) -> go.Figure:
    """One metric over the values of a setting: a curve per arm, a panel per setting of the others.

    Args:
        rows: one per setting, arm and replicate: arm, panel (its title), the axis and the metric.
    """
    heads = unique(rows, "panel")
    figure, places = multiples(heads, columns=1, row_gap=0.3)
    values = sorted(unique(rows, axis), key=lambda value: (isinstance(value, str), value))
    is_log = all(isinstance(v, int | float) and v > 0 for v in values)
    is_log = is_log and values[-1] >= WIDE * values[0]
    # plotly would draw numbers beside texts, such as `none`, and leave the texts out.
    kind = "log" if is_log else "category" if any(isinstance(v, str) for v in values) else None
    named: set[str] = set()
    for head, place in zip(heads, places, strict=True):
        in_panel = where(rows, panel=head)
        for arm in arm_order(in_panel["arm"]):
            of_arm = where(in_panel, arm=arm)
            there = sorted(unique(of_arm, axis), key=values.index)
            estimates = [estimate(floats(where(of_arm, **{axis: x}), metric.name)) for x in there]
            shown: dict[str, Any] = {"name": safe(arm_title(arm)), "mode": "lines+markers"}
            shown["showlegend"] = arm not in named
            named.add(arm)
            figure.add_trace(points(arm, there, estimates, metric.unit).update(shown), **place)
    figure.update_xaxes(title_text=safe(axis), tickvals=values, type=kind, categoryarray=values)
    figure.update_yaxes(title_text=safe(f"{metric.title} ({metric.unit})"))
    height = 70 + 230 * len(heads)
    return styled(figure, height, legend={"y": 1 + 34 / (height - 80)}, hovermode="closest")


def overhead_bars(table: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Seconds of `step_seconds` by phase as stacked bars, 100 % being the baseline's whole step.

    The whisker is one standard deviation of the whole step over the replicates.
    """
    arms = arm_order(table["arm"])
    labels = [style.wrapped(arm_title(arm, titles)) for arm in arms]

    def estimates(phase: str, column: str) -> list[Estimate]:
        return [estimate(floats(where(table, arm=arm, phase=phase), column)) for arm in arms]

    def hover(phase: str) -> dict[str, Any]:
        seconds = estimates(phase, "seconds")
        spread = zip(seconds, style.hover_sd((v.sd, v.n) for v in seconds), strict=True)
        said = "%{y}: %{customdata[0]:.3g}%{customdata[1]} s per step, %{x:.1f} %, "
        return {
            "customdata": [[value.mean, *row] for value, row in spread],
            "hovertemplate": f"{said}%{{customdata[2]}} replicates",
        }

    figure = go.Figure()
    for phase, colour in style.PHASE_COLOURS.items():
        relative = estimates(phase, "relative")
        if any(value.mean > 0 for value in relative):
            pattern = style.PHASE_PATTERNS.get(phase, "")
            bar = _segment(phase, labels, relative, colour, pattern)
            figure.add_trace(bar.update(hover(phase)))
    whole = estimates(STEP, "relative")
    ends = [value.mean + (value.sd if value.has_interval else 0.0) for value in whole]
    whisker = {"color": style.BLACK, "thickness": 1.5, "width": 4}
    figure.add_scatter(
        name=STEP,
        x=[value.mean for value in whole],
        y=labels,
        mode="markers",
        marker={"color": style.BLACK, "symbol": "line-ns", "size": 12, "line": {"width": 2}},
        error_x=whisker | {"array": [value.sd for value in whole]},
        **hover(STEP),
    )
    changes = [f" {mean_sd(v.mean - 100, v.sd, signed=True)} %" if v.n else "" for v in whole]
    figure.add_trace(_beside(ends, labels, changes, "change"))
    figure.add_vline(x=100, line={"color": style.GREY, "width": 1, "dash": "dot"})
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(
        range=[0, 1.55 * max((end for end in ends if math.isfinite(end)), default=100.0)],
        title_text=f"% of the step of {safe(arm_title(BASELINE, titles))}",
    )
    height = 150 + 46 * len(arms)
    legend = {"traceorder": "normal", "y": 1 + 8 / height, "maxheight": 1}
    return styled(figure, height, barmode="stack", bargap=0.3, legend=legend)


def calibration_errors(table: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Predicted minus published share of every cell, a panel per kind of prediction.

    With several fits a cell is their mean; their range is in the hover.

    Args:
        table: one row per fit and cell: row (model and data set), kind (of `KIND_TITLES`), cell
            (fate), published, predicted (mean over replicates, percent), sd (over replicates); as
            `cells.parquet` of a calibration has them.
    """
    require(table, ("row", "kind", "cell", "published", "predicted", "sd"), "calibration error")
    kinds = sorted(unique(table, "kind"), key=[*KIND_TITLES, *table["kind"]].index)
    names, cells = unique(table, "row"), unique(table, "cell")
    limit = max(1.0, float(np.abs(floats(table, "predicted") - floats(table, "published")).max()))
    figure, places = multiples([KIND_TITLES.get(k, k) for k in kinds], columns=1, row_gap=0.3)
    for kind, place in zip(kinds, places, strict=True):
        figure.add_trace(_heat(where(table, kind=kind), names, cells, titles or {}), **place)
    figure.update_layout(
        coloraxis_colorscale=[[0, "#B35900"], [0.5, "#F7F7F7"], [1, style.BLUE]],
        coloraxis_cmin=-limit,
        coloraxis_cmax=limit,
        coloraxis_showscale=False,  # the numbers stand in the cells
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_xaxes(showgrid=False, ticks="", tickangle=0)
    return styled(figure, (34 * len(names) + 90) * len(kinds) + 60, hovermode="closest")


def _heat(
    rows: pd.DataFrame, names: list[str], cells: list[str], titles: Mapping[str, str]
) -> go.Heatmap:
    shape = (len(names), len(cells))
    z, hover = np.full(shape, np.nan), np.full((*shape, 1), "not predicted", object)
    for (name, cell), here in groups(rows, ["row", "cell"]):
        place = names.index(name), cells.index(cell)
        errors = floats(here, "predicted") - floats(here, "published")
        z[place] = errors.mean()
        predicted = mean_sd(floats(here, "predicted").mean(), floats(here, "sd").mean())
        said = f"predicted {predicted} %, published {floats(here, 'published')[0]:.1f} %"
        said += f"<br>{errors.mean():+.1f} points"
        if len(errors) > 1:
            said += f"; {len(errors)} fits from {errors.min():+.1f} to {errors.max():+.1f}"
        hover[place] = said
    return go.Heatmap(
        x=[_SHORT.get(cell, safe(cell)) for cell in cells],
        y=[style.wrapped(titles.get(name, name), 16) for name in names],
        z=z,
        coloraxis="coloraxis",
        text=[["" if np.isnan(v) else f"{v:+.1f}" for v in line] for line in z],
        texttemplate="%{text}",
        textfont={"size": 11},
        customdata=hover.tolist(),
        hovertemplate="%{y}, %{x}<br>%{customdata[0]}<extra></extra>",
        xgap=2,
        ygap=2,
    )
