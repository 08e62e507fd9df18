"""Problems on their way: one life, the scissor of the degraded ones, the prediction of the lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from guard_core.config import ROUNDING
from lab.base.arms import arm_order
from lab.base.columns import Bools, Floats, flags, floats, groups, ints, where
from lab.base.stats import estimate
from lab.figures import style
from lab.figures.style import AREAS, Titles, arm_title, band, multiples, points, safe, styled
from lab.measures.problems import SCORES, THIRDS, Areas, Names
from lab.trace.schema import ROUTES

AREA_KINDS = tuple(kind for kind, _ in AREAS)
_ANSWERS = [place for place, kind in enumerate(AREA_KINDS) if kind == "answer"]
LONGEST = 40
"""Characters of an answer in a legend."""
Line = tuple[int, tuple[str, str] | None, Bools | None, Floats | None, Any]
"""What a trace of a life shows: place of its look, in `AREA_KINDS` or behind them; name (escaped)
and kind of an area; (visits,) where marks stand; (visits,) share of an area (0 to 1) or a rate;
text (escaped) or weight of each mark. None where a trace has none."""
PANELS = (
    ("below_half", "a  Wrong MR below ½", "% of problems", 100.0),
    ("survival", "b  Survival space", "1 - MR of wrong label (%)", 100.0),
    ("wins", "c  Correct wins", "visits of a problem", 1.0),
)
"""Column of `lab.measures.problems.scissor`, heading, unit, factor."""
_WIDTH = ("d  Window width", "% of a problem's visits")


def _looks() -> Iterator[tuple[int, dict[str, Any]]]:
    """Row and look of every trace that a life can have, in the order of `life_lines`."""

    def look(hover: str, mode: str = "lines", **others: Any) -> dict[str, Any]:
        hover = f"visit %{{x}}: {hover}<extra>%{{fullData.name}}</extra>"
        return {"mode": mode, "hovertemplate": hover, **others}

    def mark(meta: str, name: str, hover: str, symbol: str, colour: str, size: int = 8) -> Any:
        marker = {"symbol": symbol, "size": size, "color": colour}
        ring = {"line": {"width": 1.5, "color": colour}}
        return look(hover, "markers", name=name, meta=meta, marker=marker | ring)

    for kind, colour in AREAS:
        line = {"width": 0.8, "color": colour}
        filled = {"stackgroup": "votes", "fillcolor": style.translucent(colour, 0.75)}
        yield 1, look("%{y:.1f} % of votes", meta=kind, line=line, **filled)
    # Filled where the label is the true answer, ringed where it just changed.
    label = "label %{customdata}"
    yield 2, mark("right", "label is right", label, "square", style.GREEN)
    yield 2, mark("wrong", "label is wrong or unknown", label, "x-thin", style.VERMILLION)
    yield 2, mark("changed", "label changed", label, "diamond-tall-open", style.GREY, size=13)
    for name, column, colour, dash in (
        ("FR", "flip_rate", style.VERMILLION, "solid"),
        ("weight", "weight", style.BLUE, "dash"),
    ):
        line = {"color": colour, "width": 2, "dash": dash}
        yield 3, look("%{y:.3g}", name=name, meta=column, line=line)
    for (code, name), symbol in zip(ROUTES.items(), _ROUTE_SYMBOLS, strict=True):
        hover = f"{name}, weight %{{customdata:.3g}}"
        yield 4, mark(f"route {code:d}", name, hover, symbol, style.ROUTE_COLOURS[name])


_ROUTE_SYMBOLS = ("circle-open", "diamond", "square", "x")
_LOOKS = list(_looks())


def shortened(text: str) -> str:
    """An answer's text, cut where a legend has no room for it (not escaped)."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def life_lines(life: pd.DataFrame, areas: Areas, names: Names) -> Iterator[Line]:
    """The traces of a life but empty ones; areas are those of `lab.measures.problems.areas`."""
    spare = iter(_ANSWERS)
    for area, kind, share in areas:
        if (share > ROUNDING).any():
            fixed = kind in AREA_KINDS and kind != "answer"
            place = AREA_KINDS.index(kind) if fixed else next(spare, _ANSWERS[-1])
            mark = " (correct)" * (kind == "correct" and area != "true answer")
            yield place, (safe(shortened(area) + mark), kind), None, share, None
    training, weight = ints(life, "visit") > 0, floats(life, "weight")
    right, label = flags(life, "label_correct"), ints(life, "label")
    texts = np.array([safe(shortened(names.get(i) or f"answer {i}")) for i in label.tolist()])
    marks = [(chosen, texts) for chosen in (right, ~right & (label >= 0), flags(life, "flipped"))]
    # No value before training, where no guard has spoken.
    rates = [np.where(training, floats(life, name), np.nan) for name in ("flip_rate", "weight")]
    routes = [(training & (ints(life, "route") == code), weight) for code in ROUTES]
    for place, shown in enumerate([*marks, *rates, *routes], len(AREA_KINDS)):
        if isinstance(shown, np.ndarray):
            yield place, None, None, shown, None
        elif shown[0].any():
            yield place, None, shown[0], None, shown[1][shown[0]]


def life_figure(life: pd.DataFrame, areas: pd.DataFrame, names: Names | None = None) -> go.Figure:
    """One problem over its visits.

    Every trace says in `meta` what it draws: the kind of an area, `right`, `wrong`, `changed`, a
    column of the life, or `route` and its code.

    Args:
        life: from `lab.measures.problems.problem_life`.
        areas: from `lab.measures.problems.vote_areas`, of the same problem.
        names: those that are known. All are escaped here.
    """
    visit, traces = ints(life, "visit"), []
    parts = ((*key, floats(part, "share")) for key, part in groups(areas, ["area", "kind"]))
    for place, area, chosen, y, custom in life_lines(life, parts, names or {}):
        row, look = _LOOKS[place]
        x = visit if chosen is None else visit[chosen]
        flat = np.zeros(len(x))
        values: dict[str, Any] = {"x": x, "y": flat if y is None else y, "customdata": custom}
        if area is not None:
            values |= {"name": area[0], "meta": area[1], "y": 100 * values["y"]}
        traces.append((row, look | values))
    return _drawn(traces).update_xaxes(range=[-0.5, float(visit.max()) + 0.5])


def life_template() -> go.Figure:
    """A life with every trace that one can have, all of them empty."""
    return _drawn(_LOOKS)


def _drawn(traces: Iterable[tuple[int, dict[str, Any]]]) -> go.Figure:
    figure = make_subplots(
        rows=4,
        cols=1,
        shared_xaxes=True,
        row_heights=(0.5, 0.09, 0.28, 0.13),
        vertical_spacing=0.035,
    )
    for row, trace in traces:
        figure.add_trace(go.Scatter(**trace), row=row, col=1)
    figure.update_yaxes(title_text="% of votes", range=[0, 100], row=1)
    figure.update_yaxes(title_text="FR, weight", range=[-0.06, 1.06], tickvals=[0, 0.5, 1], row=3)
    for row, name in ((2, "label"), (4, "route")):
        figure.update_yaxes(
            tickvals=[0], ticktext=[name], range=[-1, 1], showgrid=False, ticks="", row=row
        )
    figure.update_xaxes(title_text="visit (0: before training)", row=4)
    legend = {"y": 1.02, "traceorder": "normal"}
    modebar = {"bgcolor": "rgba(0,0,0,0)", "color": style.GREY, "activecolor": style.INK}
    return styled(figure, 600, legend=legend, hovermode="closest", modebar=modebar)


def scissor_panels(thirds: pd.DataFrame, widths: pd.DataFrame, titles: Titles = None) -> go.Figure:
    """Three quantities per third of training and the window's width, mean and one sd over runs.

    Args:
        thirds: `lab.measures.problems.scissor` tables with the column `arm`.
        widths: `lab.measures.dynamics.window_width` tables with the column `arm`.
    """
    heads = [*(head for _, head, *_ in PANELS), _WIDTH[0]]
    figure, (*places, last) = multiples(heads, row_gap=0.32, horizontal_spacing=0.26)
    arms = arm_order([*thirds["arm"], *widths["arm"]])
    for number, arm in enumerate(arms):
        name = {"name": safe(arm_title(arm, titles))}
        for (column, _, unit, factor), place in zip(PANELS, places, strict=True):
            of_arm = [where(thirds, arm=arm, third=third) for third in range(1, THIRDS + 1)]
            estimates = [estimate(factor * floats(part, column)) for part in of_arm]
            shown = name | {"mode": "lines+markers", "showlegend": place is places[0]}
            figure.add_trace(points(arm, range(THIRDS), estimates, unit).update(shown), **place)
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


def auroc_curves(table: pd.DataFrame) -> go.Figure:
    """AUROC of every score of `lost_problem_auroc` over the visits, its 95 % interval as a band."""
    figure = go.Figure()
    figure.add_hline(y=0.5, line={"color": style.GREY, "width": 1, "dash": "dot"})
    for name, title in SCORES.items():
        scored, look = where(table, score=name), style.SCORE_STYLES[name]
        known = scored.dropna(subset=["low", "high"])
        if len(known):
            x, low, high = (floats(known, column) for column in ("visit", "low", "high"))
            figure.add_trace(band(x, low, high, look.colour, name))
        figure.add_scatter(
            x=floats(scored, "visit"),
            y=floats(scored, "auroc"),
            customdata=scored[["low", "high", "n_lost", "n_kept"]].to_numpy().tolist(),
            mode="lines+markers",
            name=title,
            line={"color": look.colour, "width": 2.2, "dash": look.dash},
            marker={"color": look.colour, "symbol": look.symbol, "size": 7},
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
