"""The browser that draws figures as pictures, by kaleido."""

from __future__ import annotations

import os
import re
import shutil

import plotly.graph_objects as go

from lab.base.errors import UserError

_NAME = re.compile(r'id="defs-([0-9a-f]{6})"')
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


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


def svg(figure: go.Figure, name: str, width: int, prefix: str = "") -> str:
    """Draw a figure as SVG, with names that are the same at every time.

    Args:
        name: of the figure among those of a page.
        prefix: of the names of its traces.
    """
    import kaleido

    for number, trace in enumerate(figure.data):
        trace.update(uid=f"{prefix}{name}-{number}")
    options = {"format": "svg", "width": width, "height": figure.layout.height}
    drawer = {"mathjax": False, "path": browser()}
    image = kaleido.calc_fig_sync(figure, opts=options, kopts=drawer).decode()
    (random,) = set(_NAME.findall(image))
    return image.replace(random, name)
