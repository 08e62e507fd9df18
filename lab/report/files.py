"""Tables and figures of a report as files in a new folder: CSV and PNG."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from lab.columns import select, write_csv
from lab.compare.paper_tables import fate_table, main_table, overhead_table
from lab.compare.step_sizes import flat
from lab.compare.tables import METRICS
from lab.errors import UserError
from lab.files import whole_folder
from lab.report import derived
from lab.report.digest import ReportedComparison, overview
from lab.report.first import AGREEMENT_NAME, FIRST, agreements, score_curve
from lab.report.page import figure_sections
from lab.report.papers import paper_table
from lab.report.sections import Drawing

_LONGEST = 60


def slugs(worlds: Sequence[ReportedComparison]) -> list[str]:
    """A distinct file name per comparison, such as `sim-llama-math500`.

    Args:
        worlds: the comparisons, in the order of the page.
    """
    found: list[str] = []
    for world in worlds:
        whole = f"{world.comparison.world}-{world.comparison.task}".lower()
        name = re.sub(r"[^a-z0-9]+", "-", whole)[:_LONGEST].strip("-") or "comparison"
        place = 2
        distinct = name
        while distinct in found:
            distinct, place = f"{name}-{place}", place + 1
        found.append(distinct)
    return found


def write_tables(worlds: Sequence[ReportedComparison], folder: Path | str) -> list[Path]:
    """Write the tables of all comparisons as CSV, one file each.

    Args:
        worlds: the comparisons.
        folder: new or empty.

    Returns:
        The files.

    Raises:
        UserError: the folder cannot be written.
    """
    names = []
    with whole_folder(Path(folder)) as place:
        for world, slug in zip(worlds, slugs(worlds), strict=True):
            for name, table in tables(world):
                names.append(f"{slug}-{name}.csv")
                write_csv(table, place / names[-1])
    return [Path(folder) / name for name in names]


def tables(world: ReportedComparison) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and content of every table that a comparison has data for.

    Args:
        world: the comparison.
    """
    yield "arms", flat(overview(world))
    if (grid := world.comparison.grid) is not None:
        parts = {"no": grid.rows, "yes": grid.null}
        yield "steps", pd.concat([own.assign(null_model=is_null) for is_null, own in parts.items()])
    yield "metrics", world.metrics.reset_index().assign(seed=_seeds(world))
    yield "summary", _summary(world)
    for reference, pairs in world.pairs.items():
        yield f"paired-{reference}", pairs.assign(against=reference)
    yield "dynamics", _arm_first(world.dynamics)
    yield "windows", _arm_first(derived.windows(world))
    if derived.no_fates(world) is None:
        yield "fates", derived.fates(world)
    papers = {"main": main_table, "full-fates": fate_table, "overhead": overhead_table}
    for name, make in papers.items():
        found = paper_table(make, world)
        if found is not None:
            yield f"paper-{name}", found


def _summary(world: ReportedComparison) -> pd.DataFrame:
    """One row per arm and metric: mean, sd, n and the unit."""
    long = world.summary.stack("metric", future_stack=True).reset_index()
    units = {metric.name: metric.unit for metric in METRICS}
    known = select(long, long["n"].to_numpy() > 0)
    return known.assign(unit=[units[name] for name in known["metric"]])


def _seeds(world: ReportedComparison) -> list[int]:
    replicates = world.metrics.index.get_level_values("replicate")
    return [world.comparison.pairs[replicate][0] for replicate in replicates]


def _arm_first(table: pd.DataFrame) -> pd.DataFrame:
    return table.reindex(columns=["arm", *(name for name in table.columns if name != "arm")])


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

    # It logs tracebacks of messages from the browser that it then ignores; its errors are raised.
    logging.getLogger("choreographer").setLevel(logging.CRITICAL)
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


def write_pictures(worlds: Sequence[ReportedComparison], folder: Path | str) -> list[Path]:
    """Draw the figures of all comparisons, one PNG file each.

    Args:
        worlds: the comparisons.
        folder: new or empty.

    Returns:
        The files.

    Raises:
        UserError: the folder cannot be written, or kaleido or a browser is missing.
    """
    found = dict(pictures(worlds))
    with whole_folder(Path(folder)) as place:
        write_pngs({place / f"{name}.png": figure for name, figure in found.items()})
    return [Path(folder) / f"{name}.png" for name in found]


def pictures(worlds: Sequence[ReportedComparison]) -> Iterator[tuple[str, go.Figure]]:
    """Name and figure of all that the page draws.

    Args:
        worlds: the comparisons.
    """
    for place, drawing in enumerate(agreements(worlds), 1):
        yield f"{AGREEMENT_NAME}-{place}", drawing.figure
    for world, slug in zip(worlds, slugs(worlds), strict=True):
        yield f"{slug}-{FIRST}", score_curve(world).figure
        for section in figure_sections():
            pieces = [p for p in section.draw(world) if isinstance(p, Drawing)]
            for place, piece in enumerate(pieces, 1):
                number = f"-{place}" if len(pieces) > 1 else ""
                yield f"{slug}-{section.name}{number}", piece.figure
