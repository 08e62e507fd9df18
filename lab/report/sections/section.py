"""A section of the page: one question, what is drawn for it, and how to read that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Child, Html, join, table, tag
from lab.report.elements.plots import absent, plot

BANDS = "Lines are means over the replicates, bands one standard deviation of single replicates."


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with what belongs to it."""

    figure: go.Figure
    alt: str
    """Description of the drawing, for readers who cannot see it; the comparison's name is added."""
    caption: str = ""
    heading: str = ""
    """Above the figure, where a section has several."""
    below: Html | None = None
    """A small table with the numbers."""


@dataclass(frozen=True, slots=True)
class Absent:
    """In place of a figure that cannot be drawn."""

    why: str
    heading: str = ""


Piece = Drawing | Absent


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page."""

    name: str
    """Of its anchor."""
    group: str
    """Of the contents that it stands in."""
    heading: str
    how: str
    """Explanation of the figures."""
    draw: Callable[[ReportedComparison], Sequence[Piece]]
    """Returns the drawings of one comparison."""


def small_table(how: str, head: Sequence[Child], rows: Iterable[Sequence[Child]]) -> Html:
    """A small table below a figure, and above it what its numbers are."""
    return join([tag("p", how, class_="small-how"), table(head, rows, class_="small")])


def render(section: Section, worlds: Sequence[ReportedComparison]) -> Html:
    """The explanation, and the comparisons side by side, stacked where there is no room.

    Where no comparison has the data, the reasons stand alone: there is nothing to read.
    """
    found = [section.draw(world) for world in worlds]
    reasons = {p.why for pieces in found for p in pieces if isinstance(p, Absent)}
    drawn = any(isinstance(piece, Drawing) for pieces in found for piece in pieces)
    if not drawn and len(reasons) == 1:
        return absent(reasons.pop())
    columns = [
        tag("div", tag("h3", world.name), *_pieces(pieces, f"{section.name}-{place}", world))
        for place, (world, pieces) in enumerate(zip(worlds, found, strict=True))
    ]
    how = tag("p", section.how, class_="how") if drawn else None
    return join([how, tag("div", *columns, class_="worlds")])


def _pieces(pieces: Sequence[Piece], name: str, world: ReportedComparison) -> list[Html]:
    return [_piece(piece, f"{name}-{place}", world) for place, piece in enumerate(pieces)]


def _piece(piece: Piece, name: str, world: ReportedComparison) -> Html:
    heading = tag("h4", piece.heading) if piece.heading else None
    if isinstance(piece, Absent):
        return join([heading, absent(piece.why)])
    drawn = plot(piece.figure, name, f"{piece.alt}, {world.name}", piece.caption)
    return join([heading, drawn, piece.below])
