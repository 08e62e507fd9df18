"""Figures as files: SVG and PDF as wide as a column of a paper, and their numbers as CSV."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import write_csv
from lab.base.errors import UserError, first_line, require_packages
from lab.base.files import whole_folder
from lab.figures.style import BAND, COLUMN


def numbers(figure: go.Figure) -> pd.DataFrame:
    """What a figure draws, one row per point.

    Returns:
        panel (its title), curve, x, y, low and high (of its band or whisker, NaN without), and
        value (of a cell of a heat map, NaN else).
    """
    traces: Any = figure.data
    bands = {_key(trace): _edges(trace) for trace in traces if trace.meta == BAND}
    rows = [row for trace in traces for row in _rows(figure, trace, bands)]
    return pd.DataFrame(rows, columns=["panel", "curve", "x", "y", "low", "high", "value"])


def _key(trace: Any) -> tuple[str, str, str]:
    return trace.legendgroup, trace.xaxis, trace.yaxis


def _edges(band: Any) -> dict[float, tuple[float, float]]:
    n = len(band.x) // 2
    return dict(zip(band.x[:n], zip(band.y[n:][::-1], band.y[:n], strict=True), strict=True))


def _rows(
    figure: go.Figure, trace: Any, bands: Mapping[Any, Mapping[float, tuple[float, float]]]
) -> Iterator[tuple[Any, ...]]:
    if trace.meta == BAND or (trace.type == "scatter" and trace.mode == "text"):
        return
    # The title of a panel stands in the place of its axis.
    titles: Any = figure.layout["annotations"]
    place, nan = int((trace.xaxis or "x")[1:] or 1) - 1, float("nan")
    panel = _plain(titles[place].text) if place < len(titles) else ""
    if trace.type == "heatmap":
        for (i, y), (j, x) in itertools.product(enumerate(trace.y), enumerate(trace.x)):
            yield panel, "", _plain(x), _plain(y), nan, nan, trace.z[i][j]
        return
    horizontal = trace.error_x.array is not None
    error, means = (trace.error_x, trace.x) if horizontal else (trace.error_y, trace.y)
    high = error.array if error.array is not None and len(error.array) else [nan] * len(means)
    low = high if error.arrayminus is None or not len(error.arrayminus) else error.arrayminus
    around = bands.get(_key(trace), {})
    for x, y, mean, below, above in zip(trace.x, trace.y, means, low, high, strict=True):
        edges = around.get(x, (mean - below, mean + above)) if np.isfinite(mean) else (nan, nan)
        yield panel, _plain(trace.name or ""), _plain(x), _plain(y), *edges, nan


def _plain(value: Any) -> Any:
    """A text without markup, and without the breaks of its lines."""
    text = html.unescape(re.sub("<[^>]+>", "", str(value).replace("<br>", " ")))
    return text if isinstance(value, str) else value


def check_exporter() -> None:
    """Refuse where the package that writes figures is not installed."""
    require_packages("png", "kaleido", name="--figures")


def write_figures(figures: Mapping[str, go.Figure], folder: Path) -> list[Path]:
    """Write every figure as NAME.svg, NAME.pdf and NAME.csv into a new folder.

    A UserError where there is no Chrome or Chromium to draw with; then nothing is written.
    """
    import kaleido
    from choreographer.errors import BrowserClosedError, ChromeNotFoundError

    kinds = ("svg", "pdf")
    with whole_folder(folder) as place:
        for name, figure in figures.items():
            write_csv(numbers(figure), place / f"{name}.csv")
        jobs = [
            {
                "fig": figure,
                "path": place / f"{name}.{kind}",
                "opts": {"format": kind, "height": figure.layout["height"], **COLUMN},
            }
            for name, figure in figures.items()
            for kind in kinds
        ]
        try:  # MathJax would be fetched, and no figure has formulas
            kaleido.write_fig_from_object_sync(jobs, kopts={"mathjax": False}, cancel_on_error=True)
        except (ChromeNotFoundError, BrowserClosedError) as error:
            raise UserError(
                f"--figures: no Chrome or Chromium to draw with ({first_line(error)}); install one "
                "or save figures by their buttons on the page"
            ) from error
    return [folder / f"{name}.{kind}" for name in figures for kind in (*kinds, "csv")]
