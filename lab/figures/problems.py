"""Problems on their way: one life, the scissor of the degraded ones, the prediction of the lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.base.columns import flags, floats, groups, ints, where
from lab.base.stats import estimate
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
    arm_title,
    band,
    multiples,
    points,
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
LONGEST = 40
"""Characters of an answer in a legend."""


def shortened(text: str) -> str:
    """An answer's text, cut where a legend has no room for it (not escaped)."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def area_title(area: str, kind: str) -> str:
    """The name of an area of votes in a legend (not escaped)."""
    known = kind == "correct" and area != "true answer"
    return shortened(area) + " (correct)" * known


def life_figure(
    life: pd.DataFrame, areas: pd.DataFrame, names: Mapping[int, str] | None = None
) -> go.Figure:
    """One problem over its visits.

    Every trace says in `meta` what it draws: the kind of an area, `right`, `wrong`, `changed`, a
    column of the life, or `route` and its code. The report's script fills in other lives by it.

    Args:
        life: from `lab.measures.problems.problem_life`.
        areas: from `lab.measures.problems.vote_areas`, of the same problem.
        names: answer id to its text, where it is known. All names are escaped here.
    """
    figure = make_subplots(
        rows=4,
        cols=1,
        shared_xaxes=True,
        row_heights=(0.5, 0.09, 0.28, 0.13),
        vertical_spacing=0.035,
    )
    for row, traces in enumerate(
        (_areas(areas), _labels(life, names or {}), _rates(life), _routes(life)), start=1
    ):
        for trace in traces:
            figure.add_trace(trace, row=row, col=1)
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
    for (area, kind), own in groups(areas, ["area", "kind"]):
        if not floats(own, "share").any():
            continue
        colour = _KIND_COLOURS.get(kind) or next(spare, BLACK)
        yield go.Scatter(
            x=ints(own, "visit"),
            y=100 * floats(own, "share"),
            name=safe(area_title(area, kind)),
            meta=kind,
            stackgroup="votes",
            mode="lines",
            line={"width": 0.8, "color": colour},
            fillcolor=translucent(colour, 0.75),
            hovertemplate="visit %{x}: %{y:.1f} % of votes<extra>%{fullData.name}</extra>",
        )


def _labels(life: pd.DataFrame, names: Mapping[int, str]) -> Iterator[go.Scatter]:
    """A mark per visit, filled where the label is the true answer, ringed where it just changed."""
    right, label = flags(life, "label_correct"), ints(life, "label")
    shown = np.array([safe(shortened(names.get(i) or f"answer {i}")) for i in label.tolist()])
    for chosen, meta, name, symbol, colour, size in (
        (right, "right", "label is right", "square", GREEN, 8),
        (~right & (label >= 0), "wrong", "label is wrong or unknown", "x-thin", VERMILLION, 8),
        (flags(life, "flipped"), "changed", "label changed", "diamond-tall-open", GREY, 13),
    ):
        hover = "label %{customdata}"
        yield from _marks(life, chosen, meta, name, hover, shown, symbol, colour, size)


def _routes(life: pd.DataFrame) -> Iterator[go.Scatter]:
    training, weight = ints(life, "visit") > 0, floats(life, "weight")
    for code, name in ROUTES.items():
        chosen = training & (ints(life, "route") == code)
        colour = GREY if name == "Stable" else ROUTE_COLOURS[name]
        hover = f"{safe(name)}, weight %{{customdata:.3g}}"
        look = (_ROUTE_SYMBOLS[name], colour)
        yield from _marks(life, chosen, f"route {code:d}", safe(name), hover, weight, *look)


def _marks(
    life: pd.DataFrame,
    chosen: np.ndarray,
    meta: str,
    name: str,
    hover: str,
    custom: np.ndarray,
    symbol: str,
    colour: str,
    size: int = 8,
) -> Iterator[go.Scatter]:
    if chosen.any():
        yield go.Scatter(
            x=ints(life, "visit")[chosen],
            y=np.zeros(int(chosen.sum())),
            customdata=custom[chosen],
            mode="markers",
            name=name,
            meta=meta,
            marker={"symbol": symbol, "size": size, "color": colour}
            | {"line": {"width": 1.5, "color": colour}},
            hovertemplate=f"visit %{{x}}: {hover}<extra>%{{fullData.name}}</extra>",
        )


def _rates(life: pd.DataFrame) -> Iterator[go.Scatter]:
    """FR and weight; no value before training, where no guard has spoken."""
    visit = ints(life, "visit")
    looks = (("FR", "flip_rate", VERMILLION, "solid"), ("weight", "weight", BLUE, "dash"))
    for name, column, colour, dash in looks:
        yield go.Scatter(
            x=visit,
            y=np.where(visit > 0, floats(life, column), np.nan),
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
_WIDTH = ("d  Window width", "% of a problem's visits")


def scissor_panels(
    thirds: pd.DataFrame, widths: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Three quantities per third of training and the window's width, mean and one sd over runs.

    Args:
        thirds: `lab.measures.problems.scissor` tables with the column `arm`.
        widths: `lab.measures.dynamics.window_width` tables with the column `arm`.
    """
    heads = [*(head for _, head, *_ in PANELS), _WIDTH[0]]
    figure, (*places, last) = multiples(heads, row_gap=0.32, column_gap=0.26)
    arms = arm_order([*thirds["arm"], *widths["arm"]])
    for number, arm in enumerate(arms):
        name = {"name": safe(arm_title(arm, titles))}
        for (column, _, unit, factor), place in zip(PANELS, places, strict=True):
            own = [where(thirds, arm=arm, third=third) for third in range(1, THIRDS + 1)]
            found = [estimate(factor * floats(part, column)) for part in own]
            shown = name | {"mode": "lines+markers", "showlegend": place is places[0]}
            figure.add_trace(points(arm, range(THIRDS), found, unit).update(shown), **place)
        width = estimate(100 * floats(where(widths, arm=arm), "window"))
        shown = name | {"mode": "markers", "showlegend": False}
        figure.add_trace(points(arm, [number], [width], _WIDTH[1]).update(shown), **last)
    for (_, _, unit, factor), place in zip(PANELS, places, strict=True):
        span = [0, 104] if factor == 100 else None
        figure.update_yaxes(title_text=unit, range=span, rangemode="tozero", **place)
        figure.update_xaxes(range=[-0.3, THIRDS - 0.7], **place)
    names = ("first", "middle", "last")
    figure.update_xaxes(tickvals=list(range(THIRDS)), ticktext=names, title_text="third")
    figure.update_yaxes(title_text=_WIDTH[1], range=[0, 116], **last)
    figure.update_xaxes(
        tickvals=[], title_text="methods", range=[-0.6, len(arms) - 0.4], ticktext=[], **last
    )
    return styled(figure, 640, legend={"y": 1 + 34 / 550}, hovermode="closest")


_STYLES = {
    "votes": ArmStyle(BLUE, "solid", "circle"),
    "mr": ArmStyle(ORANGE, "dash", "diamond"),
    "fr": ArmStyle(VERMILLION, "dot", "square"),
}


def auroc_curves(table: pd.DataFrame) -> go.Figure:
    """AUROC of every score of `lost_problem_auroc` over the visits, its 95 % interval as a band."""
    figure = go.Figure()
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"})
    for name, title in SCORES.items():
        own, style = where(table, score=name), _STYLES[name]
        known = own.dropna(subset=["low", "high"])
        if len(known):
            x, low, high = (floats(known, column) for column in ("visit", "low", "high"))
            figure.add_trace(band(x, low, high, style.colour, name))
        figure.add_scatter(
            x=floats(own, "visit"),
            y=floats(own, "auroc"),
            customdata=own[["low", "high", "n_lost", "n_kept"]].to_numpy().tolist(),
            mode="lines+markers",
            name=title,
            line={"color": style.colour, "width": 2.2, "dash": style.dash},
            marker={"color": style.colour, "symbol": style.symbol, "size": 7},
            legendgroup=name,
            hovertemplate=(
                "visit %{x}: AUROC %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>"
                "%{customdata[2]} lost, %{customdata[3]} kept problems at stake"
                "<extra>%{fullData.name}</extra>"
            ),
        )
    figure.update_xaxes(title_text="votes up to visit", rangemode="tozero")
    figure.update_yaxes(title_text="AUROC", range=[0, 1.02])
    return styled(figure, 340, hovermode="closest")
