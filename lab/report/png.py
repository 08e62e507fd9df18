"""Figures as PNG files, drawn by an installed Chrome or Chromium without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from lab.errors import UserError

WIDTH = 760
"""Pixels of a figure before scaling, about the width of a page's column."""
SCALE = 2
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def write_pngs(figures: Mapping[Path, go.Figure], width: int = WIDTH, scale: float = SCALE) -> None:
    """Draw figures into PNG files.

    Args:
        figures: path to figure; the paths' folder exists.
        width: pixels before scaling; the height is the figure's own.
        scale: pixels of the file per pixel of the figure.

    Raises:
        UserError: kaleido or a browser is missing, or the browser fails.
    """
    check_png()
    import kaleido
    from choreographer.errors import BrowserFailedError, ChromeNotFoundError

    drawings = [
        {
            "fig": _on_paper(figure),
            "path": path,
            "opts": {"format": "png", "width": width, "scale": scale},
        }
        for path, figure in figures.items()
    ]
    try:
        # No MathJax: kaleido would fetch it, and no label needs it.
        kaleido.write_fig_from_object_sync(drawings, kopts={"mathjax": False, "path": browser()})
    except (BrowserFailedError, ChromeNotFoundError, OSError, TimeoutError) as error:
        raise UserError(f"png: {browser()} cannot draw ({error}); try another browser") from error


def check_png() -> None:
    """Refuse what cannot be drawn, before the work.

    Raises:
        UserError: kaleido or a browser is missing.
    """
    try:
        import kaleido  # noqa: F401
    except ImportError as error:
        raise UserError("png: needs kaleido; pip install 'ttrl-guard-lab[png]'") from error
    if browser() is None:
        raise UserError("png: needs Chrome or Chromium; install one, or name it in BROWSER_PATH")


def browser() -> str | None:
    """The program that draws: BROWSER_PATH, or the first that is installed."""
    given = os.environ.get("BROWSER_PATH")
    return given or next(filter(None, map(shutil.which, _PROGRAMS)), None)


def _on_paper(figure: go.Figure) -> go.Figure:
    """A copy on white: the page's figures are transparent, for dark screens."""
    copy = go.Figure(figure)
    copy.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    return copy
