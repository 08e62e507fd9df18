"""All comparisons in one figure, where there are several."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.figures.fates import fate_groups
from lab.report.content.derived import no_fates
from lab.report.content.digest import ReportedComparison
from lab.report.sections.section import Drawing

ACROSS = "Fates of all comparisons"
ACROSS_NAME = "across"
HOW = (
    "The same bars for all comparisons on one scale: models, data sets or worlds below each other. "
    "The numbers in them are means ± one standard deviation in % of the problems where there is "
    "room; L/D is Learned by Degraded."
)


def across(worlds: Sequence[ReportedComparison]) -> Drawing | None:
    """Fates of every arm of every comparison; None with fewer than two comparisons that know them.

    Args:
        worlds: the comparisons of the page.
    """
    known = [world for world in worlds if no_fates(world) is None]
    if len(known) < 2:
        return None
    # Two comparisons may share a title, and must stay two groups.
    names = [f"{world.name} ({place})" for place, world in enumerate(known, 1)]
    distinct = len({world.name for world in known}) == len(known)
    parts = {w.name if distinct else n: w.metrics for w, n in zip(known, names, strict=True)}
    titles = {arm: title for world in known for arm, title in world.titles.items()}
    table = pd.concat(parts, names=["comparison", "arm", "replicate"])
    return Drawing(fate_groups(table, titles), "Stacked bars of fates, a group per comparison")
