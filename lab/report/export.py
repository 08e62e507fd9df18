"""The tables of a report as CSV, and its figures by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import select, write_csv
from lab.base.files import whole_folder
from lab.compare.tables import comparison_table, flat
from lab.measures import BY_NAME
from lab.measures.dynamics import run_windows
from lab.report import digest
from lab.report.digest import ReportedComparison, Worlds, slugs
from lab.report.html import Drawing, Piece
from lab.report.predictions import predictions
from lab.report.sections import SECTIONS, first
from lab.report.sweeps import ReportedSweep


def write_tables(worlds: Worlds, sweeps: Sequence[ReportedSweep], folder: Path | str) -> list[Path]:
    """Write the tables of all comparisons and sweeps as CSV, one file each; returns the files."""
    files = {
        f"{slug}-{name}.csv": table
        for world, slug in zip(worlds, slugs(worlds), strict=True)
        for name, table in tables(world)
    }
    files |= {f"sweep-{sweep.slug}.csv": flat(sweep.means) for sweep in sweeps}
    with whole_folder(Path(folder)) as place:
        for name, table in files.items():
            write_csv(table, place / name)
    return [Path(folder) / name for name in files]


def figures(worlds: Worlds, sweeps: Sequence[ReportedSweep]) -> dict[str, go.Figure]:
    """Every figure of the page but the lives of problems, by its name."""
    pieces: dict[str, Piece] = {}
    for world, slug in zip(worlds, slugs(worlds), strict=True):
        pieces[f"{slug}-first"] = first(world)
        for section in SECTIONS:
            pieces |= section.named(world, slug)
    pieces |= {name: drawing for name, (_, drawing) in predictions(worlds).items()}
    for sweep in sweeps:
        pieces |= sweep.figures
    return {name: piece.figure for name, piece in pieces.items() if isinstance(piece, Drawing)}


def tables(world: ReportedComparison) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and content of every table that a comparison has data for."""
    yield "arms", flat(digest.overview(world))
    if (grid := world.comparison.grid) is not None:
        parts = {"no": grid.rows, "yes": grid.null}
        yield "steps", pd.concat([rows.assign(null_model=null) for null, rows in parts.items()])
    replicates = world.metrics.index.get_level_values("replicate")
    seeds = [world.comparison.pairs[replicate][0] for replicate in replicates]
    yield "metrics", world.metrics.reset_index().assign(seed=seeds)
    long = comparison_table(world.metrics).stack("metric", future_stack=True).reset_index()
    known = select(long, long["n"].to_numpy() > 0)
    yield "summary", known.assign(unit=[BY_NAME[name].unit for name in known["metric"]])
    for reference, pairs in world.pairs.items():
        yield f"paired-{reference}", pairs.assign(against=reference)
    yield "dynamics", world.dynamics
    windows = {arm: run_windows(world.of_arm(arm)).reset_index() for arm in world.comparison.arms}
    yield "windows", digest.by_arm(windows)
    if digest.no_fates(world) is None:
        yield "fates", digest.with_fates(world, lambda _, fates: fates)
