"""Sweeps of settings: their figures, and a table of means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.base.arms import title
from lab.base.columns import TextTable, floats, groups, unique, where
from lab.base.errors import UserError
from lab.base.files import Folders
from lab.base.stats import counted, estimate
from lab.compare.collection import Skipped, find_sweeps, read_sweep
from lab.figures.outcomes import swept
from lab.measures import Metric
from lab.report.digest import COMPARED, Worlds, file_names
from lab.report.html import Drawing, Html, join, shown, table, tag

MOST_PANELS = 8
"""Panels of a figure; a larger grid shows its first settings, and its table all of them."""
_NAMES = tuple(metric.name for metric in COMPARED)
_HOW = (
    "Means over the replicates, and one standard deviation of single replicates. The axis is the "
    f"setting with most values; each further setting is a panel, of which {MOST_PANELS} are drawn."
)


@dataclass(frozen=True, slots=True)
class ReportedSweep:
    """One sweep as the page shows it."""

    name: str
    """Of its folder, not escaped, and how many of its runs failed."""
    slug: str
    """The name for files, distinct among the sweeps."""
    figures: dict[str, Drawing]
    """By their names, which are those of files."""
    means: pd.DataFrame
    """One row per setting and arm: the settings, arm, n (replicates), and as
    `lab.base.stats.Estimate` the final pass@1 and TotalDeg."""

    @property
    def table(self) -> TextTable:
        """The means as text."""
        plain = [str(name) for name in self.means if name not in ("arm", "n", *_NAMES)]
        rows = [
            [*(f"{row[name]}" for name in plain), title(str(row["arm"])), str(row["n"])]
            + [str(row[name]) for name in _NAMES]
            for row in self.means.to_dict("records")
        ]
        return TextTable([*plain, "arm", "replicates", *(m.label for m in COMPARED)], rows)


def read_sweeps(folders: Folders, worlds: Worlds) -> tuple[list[ReportedSweep], list[Skipped]]:
    """All sweeps under some folders but the grids of comparisons, and those that are damaged."""
    sweeps, skipped = [], []
    grids = [world.comparison.grid.folder for world in worlds if world.comparison.grid is not None]
    places = [place for place in find_sweeps(folders) if place.resolve() not in grids]
    for place, slug in zip(places, file_names(p.resolve().name for p in places), strict=True):
        try:
            sweeps.append(_digest(read_sweep(place), place.resolve().name, slug))
        except UserError as error:
            skipped.append(Skipped(place, str(error)))
        except (KeyError, ValueError, TypeError) as error:
            reason = f"{place}: is damaged ({type(error).__name__}); repeat its command"
            skipped.append(Skipped(place, reason))
    return sweeps, skipped


def _digest(rows: pd.DataFrame, name: str, slug: str) -> ReportedSweep:
    axes = [str(column) for column in rows.columns]
    axes = axes[axes.index("group") + 1 : axes.index("arm")]
    lost = len(where(rows, status="failed").drop_duplicates(["cell", "arm"]))
    name += f", {counted(lost, 'run')} failed" * bool(lost)
    rows = where(rows, status="done")
    drawn = {
        f"{group} {metric.name}": drawing
        for (group,), part in groups(rows, ["group"])
        for metric, drawing in _drawings(part, str(group).split(" x "))
    }
    once = rows.drop_duplicates([*axes, "arm", "replicate"])  # groups may share a cell
    means = [
        dict(zip([*axes, "arm"], values, strict=True))
        | {"n": len(part)}
        | {metric: estimate(floats(part, metric)) for metric in _NAMES}
        for values, part in groups(once, [*axes, "arm"])
    ]
    figures = {f"{slug}-{k}": d for k, d in zip(file_names(drawn), drawn.values(), strict=True)}
    return ReportedSweep(name, slug, figures, pd.DataFrame(means))


def _drawings(rows: pd.DataFrame, axes: Sequence[str]) -> Iterator[tuple[Metric, Drawing]]:
    axis = max(axes, key=lambda name: len(unique(rows, name)))
    others = [name for name in axes if name != axis and len(unique(rows, name)) > 1]
    panels = [
        ", ".join(f"{name} {value}" for name, value in zip(others, values, strict=True))
        for values in rows[others].itertuples(index=False)
    ]
    rows = rows.assign(panel=panels)
    rows = rows[rows["panel"].isin(unique(rows, "panel")[:MOST_PANELS])]
    for metric in COMPARED:
        if np.isfinite(floats(rows, metric.name)).any():
            alt = f"{metric.title} over {axis}"
            yield metric, Drawing(swept(rows, axis, metric), alt, heading=alt)


def sweep_section(sweeps: Sequence[ReportedSweep]) -> Html:
    """The figures and the table of every sweep."""
    parts = []
    for sweep in sweeps:
        drawn = (shown(drawing, name, sweep.name) for name, drawing in sweep.figures.items())
        columns = tag("div", tag("div", *drawn), class_="worlds")
        parts += [tag("h3", sweep.name), columns, table(sweep.table.head, sweep.table.rows)]
    return join([tag("p", _HOW, class_="how"), *parts])
