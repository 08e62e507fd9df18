"""The one look of all figures: a colour for every fate and arm, axes, fonts.

Colours are those of Okabe and Ito (2008), which readers with any common colour blindness can tell
apart; dashes, symbols and hatching repeat the distinction for print in grey.
"""

from __future__ import annotations

import html
import math
import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lab.base import arms
from lab.base.columns import Floats
from lab.base.stats import Estimate
from lab.measures.dynamics import OTHER, PHASES
from lab.trace.schema import ROUTES

ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE, BLACK = "#D55E00", "#CC79A7", "#4A4F57"
GREY, PALE, INK, GRID = "#8A8F98", "#C4C8CE", "#1F2328", "#E3E6EA"

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

BANDS = "Lines are means over the replicates, bands one standard deviation of single replicates."
"""Words below a figure of curves."""

BAND = "band"
"""`meta` of the area around a curve."""

Titles = Mapping[str, str] | None
"""Arm to its title, where that is not the one of `lab.base.arms`."""
Place = dict[str, int]
"""Row and column of a panel, as plotly's arguments."""

COLUMN = {"width": 420, "scale": 0.8}
"""Size in pixels of a figure in a file: 3.5 inches wide, a column of a paper, its text 8 pt."""

FATE_COLOURS = {
    "Stable Always Right": GREEN,
    "Learned": BLUE,
    "Marginal Stable": SKY,
    "Marginal Degraded": ORANGE,
    "Degraded": VERMILLION,
    "Always Wrong": GREY,
    "Unclassified": PALE,
}
"""From the best end to the worst, the order in which bars are stacked."""

AREAS = (
    ("correct", GREEN),
    *(("answer", colour) for colour in (VERMILLION, ORANGE, PURPLE, SKY, BLUE, BLACK)),
    ("other", PALE),
    ("unparseable", GREY),
)
"""Kind and colour of the areas of votes from the bottom up, answers with most votes first. The
wrong label of a trace without votes is drawn as an answer."""

FATE_PATTERNS = {"Marginal Degraded": "/", "Marginal Stable": ".", "Unclassified": "x"}

ROUTE_COLOURS = dict(zip(ROUTES.values(), (GREY, ORANGE, VERMILLION, BLUE), strict=True))

_PHASE_COLOURS = (SKY, VERMILLION, GREEN, ORANGE, BLUE, PURPLE, PALE)
PHASE_COLOURS = dict(zip((*PHASES.values(), OTHER), _PHASE_COLOURS, strict=True))
PHASE_PATTERNS = {"Reading answers": "/", "Guard": "x", "Handing over weights": "."}
_AXIS = {
    **{"gridcolor": GRID, "linecolor": GREY, "zeroline": False, "automargin": True},
    **{"ticks": "outside", "tickcolor": GREY, "ticklen": 4},
    "title": {"standoff": 8, "font": {"size": 12}},
}
_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "left", "x": 0}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": [BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY],
        "margin": {"l": 56, "r": 22, "t": 24, "b": 44},
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "namelength": -1},
        "legend": _LEGEND | {"font": {"size": 12}},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """Style of one arm in every figure."""

    colour: str
    dash: str = "solid"
    symbol: str = "circle"


_ARM_STYLES = {
    "ttrl": ArmStyle(VERMILLION, "solid", "circle"),
    "guard": ArmStyle(BLUE, "solid", "square"),
    "matched": ArmStyle(ORANGE, "dash", "diamond"),
    "frozen": ArmStyle(PURPLE, "dot", "triangle-up"),
    "memory": ArmStyle(GREEN, "dashdot", "triangle-down"),
    "memory_guard": ArmStyle(SKY, "longdash", "cross"),
    "truth": ArmStyle(GREY, "longdashdot", "star"),
    "random_skip": ArmStyle(BLACK, "dash", "hexagon"),
    "release": ArmStyle(BLUE, "dot", "square-open"),
    "frs": ArmStyle(SKY, "dash", "circle-open"),
    "mps": ArmStyle(PURPLE, "dash", "diamond-open"),
    "rcsu": ArmStyle(GREEN, "dot", "triangle-up-open"),
}
SCORE_STYLES = {
    "votes": ArmStyle(BLUE, "solid", "circle"),
    "mr": ArmStyle(ORANGE, "dash", "diamond"),
    "fr": ArmStyle(VERMILLION, "dot", "square"),
}
"""Score of `lab.measures.problems` to the look of its curve."""
_SPARE_SYMBOLS = {"longdashdot": "hexagon", "dot": "pentagon", "dash": "bowtie", "dashdot": "x"}
_SPARE_STYLES = [
    ArmStyle(colour, dash, symbol)
    for dash, symbol in _SPARE_SYMBOLS.items()
    for colour in (SKY, PURPLE, ORANGE, GREEN, BLUE, VERMILLION)
]
_given: list[ArmStyle] = []


@cache
def arm_style(name: str) -> ArmStyle:
    """Colour, dash and symbol of an arm.

    Those of other arms than the usual follow from the name, as far as no earlier one has them.
    """
    if name in _ARM_STYLES:
        return _ARM_STYLES[name]
    place = zlib.crc32(name.encode()) % len(_SPARE_STYLES)
    order = _SPARE_STYLES[place:] + _SPARE_STYLES[:place]
    taken = [style.colour for style in _given]
    _given.append(min(order, key=lambda style: (taken.count(style.colour), _given.count(style))))
    return _given[-1]


def arm_title(name: str, titles: Titles = None) -> str:
    """The title of an arm (not escaped): that in `titles`, or else that of `lab.base.arms`."""
    return (titles or {}).get(name, arms.title(name))


def safe(text: object) -> str:
    """Text as plotly shall show it: its labels read a subset of HTML, so markup is escaped."""
    return html.escape(str(text), quote=False)


def wrapped(text: object, width: int = 15) -> str:
    """Escaped text broken over lines at its spaces, for tick labels on a phone."""
    # Files join the lines by spaces: no word but a very long one is broken.
    longest = max(map(len, str(text).split()), default=0)
    lines = textwrap.wrap(str(text), max(width, min(longest, 30)), break_on_hyphens=False)
    return "<br>".join(map(safe, lines)) or safe(text)


def translucent(colour: str, alpha: float) -> str:
    """A hex colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def styled(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give a figure the one look; the height is in pixels, the width that of the page's column."""
    # Set, not updated: plotly would merge the template leaf by leaf.
    figure.layout.template = TEMPLATE
    figure.update_layout(height=height, **layout)
    return figure


def multiples(
    titles: Sequence[str], columns: int = 2, row_gap: float = 0.3, **options: Any
) -> tuple[go.Figure, list[Place]]:
    """Empty panels, filled row by row, and their places.

    Args:
        titles: one per panel, not escaped; a single column has them on the left.
        columns: largest number of panels in a row.
        row_gap: share of the figure's height between two rows.
        options: of `plotly.subplots.make_subplots`.
    """
    n_columns = max(1, min(columns, len(titles)))
    rows = math.ceil(len(titles) / n_columns)
    figure = make_subplots(
        rows=rows,
        cols=n_columns,
        subplot_titles=[f"<b>{safe(title)}</b>" for title in titles],
        vertical_spacing=row_gap / max(rows, 2),
        **{"horizontal_spacing": 0.12, **options},
    )
    figure.update_annotations(font_size=13, **({"x": 0, "xanchor": "left"} if columns == 1 else {}))
    places = [{"row": 1 + n // n_columns, "col": 1 + n % n_columns} for n in range(len(titles))]
    return figure, places


def hover_sd(spreads: Iterable[tuple[float, int]]) -> list[list[str | int]]:
    """Spread and number of replicates as a hover shows them; no spread of one replicate."""
    return [[f" ± {sd:.2g}" if math.isfinite(sd) else "", int(n)] for sd, n in spreads]


def points(arm: str, x: Sequence[Any], estimates: Sequence[Estimate], unit: str) -> go.Scatter:
    """Means of an arm, which are no less than 0, with one standard deviation as whiskers."""
    style = arm_style(arm)
    means = [value.mean for value in estimates]
    sds = [value.sd for value in estimates]
    return go.Scatter(
        x=list(x),
        y=means,
        customdata=hover_sd((v.sd, v.n) for v in estimates),
        line={"color": style.colour, "width": 2.2, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 8},
        error_y={"type": "data", "array": sds, "color": style.colour, "thickness": 1.5, "width": 4},
        # Shares and counts cannot fall below zero, so neither can their bars.
        error_y_arrayminus=np.minimum(sds, means),
        legendgroup=safe(arm),
        hovertemplate=(
            f"%{{y:.3g}}%{{customdata[0]}} {unit}, %{{customdata[1]}} replicates"
            "<extra>%{fullData.name}</extra>"
        ),
    )


def band(x: Floats, low: Floats, high: Floats, colour: str, group: str) -> go.Scatter:
    """The area between two curves; it shows and hides with the curves of its group."""
    return go.Scatter(
        meta=BAND,
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        mode="lines",
        fill="toself",
        fillcolor=translucent(colour, 0.15),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
    )
