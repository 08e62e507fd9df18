"""Escaped markup, numbers and figures as parts of a page, and pages of figures alone."""

from __future__ import annotations

import base64
import html
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from lab.base.errors import UserError
from lab.base.files import whole
from lab.figures.style import COLUMN, TEMPLATE
from lab.trace.manifest import now

_DIGITS = 5
"""Significant digits of a number in a figure, far below a pixel."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""The browser itself refuses to load anything from outside."""
_HEAD_BYTES = 4096
"""The tag that marks our pages stands at the top."""
GENERATOR = "ttrl-guard-lab figures"
"""Marks a page of figures as ours, so that it may be overwritten."""
Child = str | int | float | None
"""Content of an element; anything but `Html` is escaped."""


class Html(str):
    """Markup made by this module: it is not escaped again."""

    __slots__ = ()


def tag(name: str, *children: Child, **attributes: str | None) -> Html:
    """An element; its name is never taken from data, and what is None is left out.

    Of attributes a trailing underscore is dropped (`class_`), others become hyphens.
    """
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name == "meta" else f"{join(children)}</{name}>"
    return Html(f"<{name}{opening}>{end}")


def join(children: Iterable[Child]) -> Html:
    """Several pieces, one after the other."""
    there = (child for child in children if child is not None)
    return Html("".join(c if isinstance(c, Html) else html.escape(str(c)) for c in there))


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], class_: str | None = None
) -> Html:
    """A table whose first column names its rows; it scrolls by itself where it is too wide."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    inner = tag("table", tag("thead", top), tag("tbody", *body), class_=class_)
    return tag("div", inner, class_="scroll", tabindex="0")


def small_table(how: str, head: Sequence[Child], rows: Iterable[Sequence[Child]]) -> Html:
    """A small table below a figure, and above it what its numbers are."""
    return join([tag("p", how, class_="small-how"), table(head, rows, class_="small")])


def definitions(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """A list of names and what they hold."""
    return tag("dl", *(join((tag("dt", name), tag("dd", value))) for name, value in pairs))


def warned(lines: Iterable[str]) -> Html | None:
    """A block of warnings; None without any."""
    paragraphs = [tag("p", line) for line in lines]
    return tag("div", *paragraphs, class_="warn") if paragraphs else None


def plot(figure: go.Figure, name: str, alt: str, caption: str = "") -> Html:
    """A figure and its data; the name is unique on the page, and that of the file a reader saves.

    `alt` tells readers who cannot see it what is drawn.
    """
    source = f"{name}-data"
    place = tag(
        "div", id=name, class_="plot", role="img", aria_label=alt, data_figure=source,
        style=f"min-height:{figure.layout['height']}px",
    )  # fmt: skip
    data = stored(deflated(figure_json(figure)), source)
    return tag("figure", place, data, tag("figcaption", caption) if caption else None)


def figure_json(figure: go.Figure) -> str:
    """A figure's data and layout, numbers rounded, without the template that all figures share."""
    layout = figure.layout.to_plotly_json()
    layout.pop("template", None)
    traces: Any = figure.data
    values = {"data": [trace.to_plotly_json() for trace in traces], "layout": layout}
    return json.dumps(plain(values), separators=(",", ":"))


def plain(value: Any) -> Any:
    """Values that JSON knows, numbers rounded; what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def absent(why: str) -> Html:
    """In place of a figure that cannot be drawn."""
    return tag("figure", tag("p", why, class_="absent"))


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with what belongs to it."""

    figure: go.Figure
    alt: str
    """Description of the drawing, for readers who cannot see it; the comparison's name is added."""
    caption: str = ""
    heading: str = ""
    """Above the figure, where a section has several."""
    key: str = ""
    """What the names of the figures of a section differ in."""
    below: Html | None = None
    """A small table with the numbers."""


@dataclass(frozen=True, slots=True)
class Absent:
    """In place of a figure that cannot be drawn."""

    why: str
    heading: str = ""
    key: str = ""


Piece = Drawing | Absent


def shown(piece: Piece, name: str, world: str) -> Html:
    """A figure under its heading, or the reason why there is none."""
    heading = tag("h4", piece.heading) if piece.heading else None
    if isinstance(piece, Absent):
        return tag("div", heading, absent(piece.why))
    drawn = plot(piece.figure, name, f"{piece.alt}, {world}", piece.caption)
    return tag("div", heading, drawn, piece.below)


def deflated(text: str) -> str:
    """A text deflated and in base64, for the page's script; no browser runs or shows it."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def stored(text: str, name: str) -> Html:
    """A text of `deflated` on the page."""
    return tag("script", Html(text), type="text/plain", id=name)


@cache
def _plotly() -> str:
    return deflated(get_plotlyjs())


def asset(name: str) -> Html:
    """A script or style that this package ships."""
    return Html(files("lab").joinpath("assets", name).read_text(encoding="utf-8"))


def library() -> Html:
    """The plotting library and the script that draws with it, to stand once below all figures."""
    # What a file of a figure looks like is said once, for the button and for `guard-report`.
    look = {"template": TEMPLATE.to_plotly_json(), "image": {"format": "svg", **COLUMN}}
    data = stored(deflated(json.dumps(look)), "plotly-look"), stored(_plotly(), "plotly")
    return join([*data, tag("script", asset("report.js"))])


def document(title: str, generator: str, body: Html, *styles: Html) -> str:
    """A whole page; `generator` marks it as ours, see `is_made_by`."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="generator", content=generator),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        *(tag("style", style) for style in (asset("report.css"), *styles)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def is_made_by(path: Path, generator: str) -> bool:
    """Return whether a file is such a page, which may be overwritten."""
    with path.open("rb") as file:
        return f'name="generator" content="{generator}"'.encode() in file.read(_HEAD_BYTES)


def figure_page(title: str, words: Sequence[str], drawing: Drawing, how: Sequence[str]) -> str:
    """A page of one figure; `words` are paragraphs below the title, `how` above the figure."""
    section = tag(
        "section",
        tag("h2", drawing.heading),
        *(tag("p", line, class_="how") for line in how),
        plot(drawing.figure, "figure-0", drawing.alt),
    )
    header = tag("header", tag("h1", title), *(tag("p", line) for line in words))
    footer = tag("footer", tag("p", f"Made {now()}; nothing on this page is fetched."))
    body = tag("body", header, tag("main", section), footer, library())
    return document(title, GENERATOR, body)


def check_page(path: Path) -> None:
    """Refuse a place that holds something else than a page of figures."""
    if path.exists() and (path.is_dir() or not is_made_by(path, GENERATOR)):
        raise UserError(f"{path}: exists and is no page of this program; move it away")


def write_page(path: Path, content: str) -> None:
    """Put a page on disk, whole; what is not UTF-8 as escapes."""
    with whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
