"""Every figure of the page as a PNG file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go

from lab.report.content.digest import ReportedComparison
from lab.report.folders import our_folder
from lab.report.names import slugs
from lab.report.page import figure_sections
from lab.report.png import check_png, write_pngs
from lab.report.sections.across import ACROSS_NAME, across
from lab.report.sections.agreement import AGREEMENT_NAME, agreements
from lab.report.sections.section import Drawing

KIND = "figures"


def write_pictures(worlds: Sequence[ReportedComparison], folder: Path | str) -> list[Path]:
    """Draw the figures of all comparisons, one PNG file each.

    Args:
        worlds: the comparisons.
        folder: new, empty, or one that holds such figures alone, which are replaced.

    Returns:
        The files.

    Raises:
        UserError: the folder holds something else or cannot be written, or kaleido or a browser
            is missing.
    """
    check_png()
    with our_folder(Path(folder), KIND) as (place, names):
        found = dict(pictures(worlds))
        names += [f"{name}.png" for name in found]
        write_pngs({place / f"{name}.png": figure for name, figure in found.items()})
    return [Path(folder) / name for name in names]


def pictures(worlds: Sequence[ReportedComparison]) -> Iterator[tuple[str, go.Figure]]:
    """Name and figure of all that the page draws.

    Args:
        worlds: the comparisons.
    """
    drawing = across(worlds)
    if drawing is not None:
        yield ACROSS_NAME, drawing.figure
    for place, drawing in enumerate(agreements(worlds), 1):
        yield f"{AGREEMENT_NAME}-{place}", drawing.figure
    for world, slug in zip(worlds, slugs(worlds), strict=True):
        for section in figure_sections():
            pieces = [p for p in section.draw(world) if isinstance(p, Drawing)]
            for place, piece in enumerate(pieces, 1):
                number = f"-{place}" if len(pieces) > 1 else ""
                yield f"{slug}-{section.name}{number}", piece.figure
