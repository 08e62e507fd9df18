"""A page of a few figures with the words that belong to them, in the look of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go

from lab.base.errors import UserError
from lab.base.files import whole
from lab.report.html import Html, document, is_made_by, join, library, plot, tag
from lab.trace.manifest import now

GENERATOR = "ttrl-guard-lab figures"
"""Marks a page as ours, so that it may be overwritten."""


@dataclass(frozen=True, slots=True)
class Part:
    """A figure under its heading."""

    heading: str
    words: Sequence[str]
    """Paragraphs above the figure, not escaped."""
    figure: go.Figure | None
    """None where there is nothing to draw, which the words must say."""
    alt: str = ""
    """Description of the drawing, for readers who cannot see it."""


def figure_page(title: str, words: Sequence[str], parts: Sequence[Part]) -> str:
    """The page as HTML; it needs nothing from outside.

    Args:
        words: paragraphs at the top: what the figures show.
        parts: from top to bottom.
    """
    sections = [_section(part, f"figure-{place}") for place, part in enumerate(parts)]
    header = tag("header", tag("h1", title), *(tag("p", line) for line in words))
    made = tag("p", f"Made {now()}; nothing on this page is fetched.")
    body = tag(
        "body",
        header,
        tag("main", *sections),
        tag("footer", made),
        library(),
    )
    return document(title, GENERATOR, body)


def write_page(path: Path, content: str) -> None:
    """Put a page on disk, whole.

    Raises:
        UserError: the place holds something else than such a page, or cannot be written.
    """
    check_page(path)
    with whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")


def check_page(path: Path) -> None:
    """Refuse a place that holds something else than such a page.

    Raises:
        UserError: it does.
    """
    if not path.exists():
        return
    if path.is_dir() or not is_made_by(path, GENERATOR):
        raise UserError(f"{path}: exists and is no page of this program; move it away")


def _section(part: Part, name: str) -> Html:
    words = [tag("p", line, class_="how") for line in part.words]
    drawn = None if part.figure is None else plot(part.figure, name, part.alt)
    return tag("section", tag("h2", part.heading), join(words), drawn)
