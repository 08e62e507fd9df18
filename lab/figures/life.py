"""A single problem's life: its votes as areas, and under them label, FR, weight and route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.columns import flags, floats, ints
from lab.figures.curves import rows
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
    safe,
    styled,
    translucent,
)
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
        life: from `lab.measures.life.problem_life`.
        areas: from `lab.measures.life.vote_areas`, of the same problem; their names are escaped
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
        own = rows(areas, ((areas["area"] == area) & (areas["kind"] == kind)).to_numpy())
        if not floats(own, "share").any():
            continue
        colour = _KIND_COLOURS.get(kind) or next(spare, BLACK)
        name = safe(shortened(area)) + (
            " (correct)" if kind == "correct" and area != "true answer" else ""
        )
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
