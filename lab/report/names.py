"""File names for comparisons, safe whatever their runs are called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lab.report.content.digest import ReportedComparison

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
