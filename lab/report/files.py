"""Tables of a report as CSV files in a new folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab.base.columns import select, write_csv
from lab.base.files import whole_folder
from lab.compare.step_sizes import flat
from lab.compare.tables import METRICS
from lab.report import digest
from lab.report.digest import ReportedComparison, overview

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
    """Name and content of every table that a comparison has data for."""
    yield "arms", flat(overview(world))
    if (grid := world.comparison.grid) is not None:
        parts = {"no": grid.rows, "yes": grid.null}
        yield "steps", pd.concat([own.assign(null_model=is_null) for is_null, own in parts.items()])
    yield "metrics", world.metrics.reset_index().assign(seed=_seeds(world))
    yield "summary", _summary(world)
    for reference, pairs in world.pairs.items():
        yield f"paired-{reference}", pairs.assign(against=reference)
    yield "dynamics", _arm_first(world.dynamics)
    yield "windows", _arm_first(digest.windows(world))
    if digest.no_fates(world) is None:
        yield "fates", digest.fates(world)


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
