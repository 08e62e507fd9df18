"""All tables of a comparison in tidy form: one row per observation, one column per variable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab.columns import write_csv
from lab.compare.paper_tables import fate_table, main_table, overhead_table
from lab.compare.tables import METRICS
from lab.figures.curves import rows
from lab.report.content import derived
from lab.report.content.digest import ReportedComparison
from lab.report.folders import our_folder
from lab.report.names import slugs
from lab.report.sections.papers import paper_table

KIND = "tables"


def write_tables(worlds: Sequence[ReportedComparison], folder: Path | str) -> list[Path]:
    """Write the tables of all comparisons as CSV, one file each.

    Args:
        worlds: the comparisons.
        folder: new, empty, or one that holds such tables alone, which are replaced.

    Returns:
        The files.

    Raises:
        UserError: the folder holds something else, or cannot be written.
    """
    with our_folder(Path(folder), KIND) as (place, names):
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
    yield "metrics", world.metrics.reset_index().assign(seed=_seeds(world))
    yield "summary", _summary(world)
    for reference, pairs in world.pairs.items():
        yield f"paired-{reference}", pairs.assign(against=reference)
    yield "dynamics", _arm_first(world.dynamics)
    yield "windows", _arm_first(derived.windows(world))
    if derived.no_fates(world) is None:
        yield "fates", derived.fates(world)
        yield "change", derived.changes(world)
    papers = {"main": main_table, "full-fates": fate_table, "overhead": overhead_table}
    for name, make in papers.items():
        found = paper_table(make, world)
        if found is not None:
            yield f"paper-{name}", found


def _summary(world: ReportedComparison) -> pd.DataFrame:
    """One row per arm and metric: mean, sd, n and the unit."""
    long = world.summary.stack("metric", future_stack=True).reset_index()
    units = {metric.name: metric.unit for metric in METRICS}
    known = rows(long, long["n"].to_numpy() > 0)
    return known.assign(unit=[units[name] for name in known["metric"]])


def _seeds(world: ReportedComparison) -> list[int]:
    replicates = world.metrics.index.get_level_values("replicate")
    return [world.comparison.pairs[replicate][0] for replicate in replicates]


def _arm_first(table: pd.DataFrame) -> pd.DataFrame:
    return table.reindex(columns=["arm", *(name for name in table.columns if name != "arm")])
