"""Problems on their way: one life, the scissor of the degraded ones, the prediction of the lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.base.columns import flags, floats, ints, select, where
from lab.base.stats import Estimate, estimate
from lab.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    ROUTE_COLOURS,
    SKY,
    VERMILLION,
    ArmStyle,
    arm_order,
    arm_style,
    arm_title,
    hover_sd,
    line_with_band,
    multiples,
    place_of,
    safe,
    styled,
    translucent,
)
from lab.measures.problems import SCORES, THIRDS
from lab.trace.schema import ROUTES

_KIND_COLOURS = {"correct": GREEN, "other": PALE, "unparseable": GREY}
_ANSWER_COLOURS = (VERMILLION, ORANGE, PURPLE, SKY, BLUE, BLACK)
"""Of answers that are not known to be right, those with most votes first."""
_ROUTE_SYMBOLS = dict(zip(ROUTES.values(), ("circle-open", "diamond", "square", "x"), strict=True))
_HEIGHTS = (0.5, 0.09, 0.28, 0.13)


LONGEST = 40
"""Characters of an answer in a legend."""


def shortened(text: str) -> str:
    """An answer's text, cut where a legend has no room for it (not escaped)."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def area_title(area: str, kind: str) -> str:
    """The name of an area of votes in a legend (not escaped)."""
    known = kind == "correct" and area != "true answer"
    return shortened(area) + " (correct)" * known


class _Mark(NamedTuple):
    """Mark of one kind of visit."""

    meta: str
    name: str
    symbol: str
    colour: str
    hover: str
    size: int = 8


def life_figure(
    life: pd.DataFrame, areas: pd.DataFrame, names: Mapping[int, str] | None = None
) -> go.Figure:
    """One problem over its visits.

    Every trace says in `meta` what it draws: the kind of an area, `right`, `wrong`, `changed`, a
    column of the life, or `route` and its code. The report's script fills in other lives by it.

    Args:
        life: from `lab.measures.problems.problem_life`.
        areas: from `lab.measures.problems.vote_areas`, of the same problem; their names are escaped
            here.
        names: answer id to its text, where it is known; escaped here.
    """
    figure = make_subplots(
        rows=4, cols=1, shared_xaxes=True, row_heights=_HEIGHTS, vertical_spacing=0.035
    )
    for trace in _areas(areas):
        figure.add_trace(trace, row=1, col=1)
    for trace in _labels(life, names or {}):
        figure.add_trace(trace, row=2, col=1)
    for name, column, colour, dash in (
        ("FR", "flip_rate", VERMILLION, "solid"),
        ("weight", "weight", BLUE, "dash"),
    ):
        figure.add_trace(_line(life, name, column, colour, dash), row=3, col=1)
    for trace in _routes(life):
        figure.add_trace(trace, row=4, col=1)
    figure.update_yaxes(title_text="% of votes", range=[0, 100], row=1)
    figure.update_yaxes(title_text="FR, weight", range=[-0.06, 1.06], tickvals=[0, 0.5, 1], row=3)
    for row, name in ((2, "label"), (4, "route")):
        figure.update_yaxes(
            tickvals=[0], ticktext=[name], range=[-1, 1], showgrid=False, ticks="", row=row
        )
    figure.update_xaxes(range=[-0.5, float(ints(life, "visit").max()) + 0.5])
    figure.update_xaxes(title_text="visit (0: before training)", row=4)
    legend = {"y": 1.02, "traceorder": "normal"}
    modebar = {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK}
    return styled(figure, 600, legend=legend, hovermode="closest", modebar=modebar)


def _areas(areas: pd.DataFrame) -> Iterator[go.Scatter]:
    spare = iter(_ANSWER_COLOURS)
    named = areas[["area", "kind"]].drop_duplicates()
    for area, kind in zip(named["area"], named["kind"], strict=True):
        own = select(areas, ((areas["area"] == area) & (areas["kind"] == kind)).to_numpy())
        if not floats(own, "share").any():
            continue
        colour = _KIND_COLOURS.get(kind) or next(spare, BLACK)
        name = safe(area_title(area, kind))
        yield go.Scatter(
            x=ints(own, "visit"),
            y=100 * floats(own, "share"),
            name=name,
            meta=kind,
            stackgroup="votes",
            mode="lines",
            line={"width": 0.8, "color": colour},
            fillcolor=translucent(colour, 0.75),
            hovertemplate="visit %{x}: %{y:.1f} % of votes<extra>%{fullData.name}</extra>",
        )


def _labels(life: pd.DataFrame, names: Mapping[int, str]) -> Iterator[go.Scatter]:
    """A mark per visit, filled where the label is the true answer, ringed where it just changed."""
    right, flipped, label = (
        flags(life, "label_correct"),
        flags(life, "flipped"),
        ints(life, "label"),
    )
    hover = "label %{customdata}"
    shown = np.array([safe(shortened(names.get(i) or f"answer {i}")) for i in label.tolist()])
    for chosen, mark in (
        (right, _Mark("right", "label is right", "square", GREEN, hover)),
        (
            ~right & (label >= 0),
            _Mark("wrong", "label is wrong or unknown", "x-thin", VERMILLION, hover),
        ),
        (flipped, _Mark("changed", "label changed", "diamond-tall-open", GREY, hover, 13)),
    ):
        if chosen.any():
            yield _marks(life, chosen, mark, shown)


def _routes(life: pd.DataFrame) -> Iterator[go.Scatter]:
    code, visit = ints(life, "route"), ints(life, "visit")
    for value, name in ROUTES.items():
        chosen = (code == value) & (visit > 0)
        if chosen.any():
            colour = GREY if name == "Stable" else ROUTE_COLOURS[name]
            hover = f"{safe(name)}, weight %{{customdata:.3g}}"
            mark = _Mark(f"route {value:d}", safe(name), _ROUTE_SYMBOLS[name], colour, hover)
            yield _marks(life, chosen, mark, floats(life, "weight"))


def _marks(life: pd.DataFrame, chosen: np.ndarray, mark: _Mark, custom: np.ndarray) -> go.Scatter:
    return go.Scatter(
        x=ints(life, "visit")[chosen],
        y=np.zeros(int(chosen.sum())),
        customdata=custom[chosen],
        mode="markers",
        name=mark.name,
        meta=mark.meta,
        marker={
            "symbol": mark.symbol,
            "size": mark.size,
            "color": mark.colour,
            "line": {"width": 1.5, "color": mark.colour},
        },
        hovertemplate=f"visit %{{x}}: {mark.hover}<extra>%{{fullData.name}}</extra>",
    )


def _line(life: pd.DataFrame, name: str, column: str, colour: str, dash: str) -> go.Scatter:
    """No value before training, where no guard has spoken."""
    values = np.where(ints(life, "visit") > 0, floats(life, column), np.nan)
    return go.Scatter(
        x=ints(life, "visit"),
        y=values,
        mode="lines",
        name=name,
        meta=column,
        line={"color": colour, "width": 2, "dash": dash},
        hovertemplate="visit %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
    )


PANELS = (
    ("below_half", "a  Wrong MR below ½", "% of problems", 100.0),
    ("survival", "b  Survival space", "1 - MR of wrong label (%)", 100.0),
    ("wins", "c  Correct wins", "visits of a problem", 1.0),
)
"""Column of `lab.measures.problems.scissor`, heading, unit, factor."""
WIDTH_TITLE = "d  Window width"
_NAMES = ("first", "middle", "last")


def scissor_panels(
    thirds: pd.DataFrame, widths: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Three quantities per third of training and the window's width, mean and one sd over runs.

    Args:
        thirds: `lab.measures.problems.scissor` tables with the column `arm`.
        widths: `lab.measures.dynamics.window_width` tables with the column `arm`.
    """
    heads = [*(head for _, head, *_ in PANELS), WIDTH_TITLE]
    figure = multiples(heads, row_gap=0.32, column_gap=0.26)
    arms = arm_order([*thirds["arm"], *widths["arm"]])
    for number, arm in enumerate(arms):
        name = safe(arm_title(arm, titles))
        for panel, (column, _, unit, factor) in enumerate(PANELS):
            trace = _per_third(where(thirds, arm=arm), column, unit, factor, arm)
            trace.update(name=name, showlegend=panel == 0)
            figure.add_trace(trace, **place_of(panel, len(heads)))
        width = _width(where(widths, arm=arm), number, arm)
        width.name = name
        figure.add_trace(width, **place_of(len(PANELS), len(heads)))
    for panel, (_, _, unit, factor) in enumerate(PANELS):
        span = [0, 104] if factor == 100 else None
        figure.update_yaxes(
            title_text=unit, range=span, rangemode="tozero", **place_of(panel, len(heads))
        )
        figure.update_xaxes(range=[-0.3, THIRDS - 0.7], **place_of(panel, len(heads)))
    figure.update_xaxes(tickvals=list(range(THIRDS)), ticktext=_NAMES, title_text="third")
    last = place_of(len(PANELS), len(heads))
    figure.update_yaxes(title_text="% of a problem's visits", range=[0, 116], **last)
    figure.update_xaxes(
        tickvals=[], title_text="methods", range=[-0.6, len(arms) - 0.4], ticktext=[], **last
    )
    figure.update_annotations(font_size=13)
    return styled(figure, 640, legend={"y": 1 + 34 / 550}, hovermode="closest")


def _per_third(own: pd.DataFrame, column: str, unit: str, factor: float, arm: str) -> go.Scatter:
    found = [
        estimate(factor * floats(select(own, ints(own, "third") == third), column))
        for third in range(1, THIRDS + 1)
    ]
    return _points(arm, list(range(THIRDS)), found, unit, "lines+")


def _width(own: pd.DataFrame, place: int, arm: str) -> go.Scatter:
    found = [estimate(100 * floats(own, "window"))]
    trace = _points(arm, [place], found, "% of a problem's visits", "")
    trace.showlegend = False
    return trace


def _points(arm: str, x: list[int], found: list[Estimate], unit: str, lines: str) -> go.Scatter:
    style = arm_style(arm)
    sds = [value.sd if value.has_interval else 0.0 for value in found]
    return go.Scatter(
        x=x,
        y=[value.mean for value in found],
        customdata=hover_sd((v.sd for v in found), (v.n for v in found)),
        mode=f"{lines}markers",
        line={"color": style.colour, "width": 2.2, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 8},
        error_y={
            "type": "data",
            "array": sds,
            # Shares and counts cannot fall below zero, so neither can their bars.
            "arrayminus": np.minimum(sds, [value.mean for value in found]),
            "color": style.colour,
            "thickness": 1.5,
            "width": 4,
        },
        legendgroup=safe(arm),
        hovertemplate=(
            f"%{{y:.3g}}%{{customdata[0]}} {unit}, %{{customdata[1]}} replicates"
            "<extra>%{fullData.name}</extra>"
        ),
    )


_STYLES = {
    "votes": ArmStyle(BLUE, "solid", "circle"),
    "mr": ArmStyle(ORANGE, "dash", "diamond"),
    "fr": ArmStyle(VERMILLION, "dot", "square"),
}
_HOVER = (
    "visit %{x}: AUROC %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>"
    "%{customdata[2]} lost, %{customdata[3]} kept problems at stake<extra>%{fullData.name}</extra>"
)


def auroc_curves(table: pd.DataFrame) -> go.Figure:
    """AUROC of every score over the visits, with its 95 % interval as a band.

    Args:
        table: `lab.measures.problems.lost_problem_auroc` of one arm.
    """
    figure = go.Figure()
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"})
    for name, title in SCORES.items():
        own = select(table, table["score"].to_numpy() == name)
        traces = line_with_band(
            (floats(own, "visit"), floats(own, "auroc")),
            (floats(own, "low"), floats(own, "high")),
            _STYLES[name],
            name,
            customdata=own[["low", "high", "n_lost", "n_kept"]].to_numpy().tolist(),
            mode="lines+markers",
            name=title,
            hovertemplate=_HOVER,
        )
        figure.add_traces(traces)
    figure.update_xaxes(title_text="votes up to visit", rangemode="tozero")
    figure.update_yaxes(title_text="AUROC", range=[0, 1.02])
    return styled(figure, 340, hovermode="closest")
