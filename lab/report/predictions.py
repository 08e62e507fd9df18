"""Real runs over the simulated ones that predict them."""

from __future__ import annotations

from lab.base.columns import select
from lab.compare.agreement import CELLS, MEANS, alike, cell_table, compare_cells, mean_table
from lab.compare.collection import MEASURED
from lab.figures.style import BANDS
from lab.figures.training import overlay
from lab.report.digest import ReportedComparison, Worlds, file_names, slugs
from lab.report.html import Drawing, Html, join, shown, small_table, tag
from lab.trace.trace import Trace

_HOW = (
    "The simulator's policy measured is the start model linearised over its token tree, trained "
    "with the learning rate and all other settings of the real runs; nothing is fitted to their "
    "outcome. The other half of the seeds is the error of one half of the real seeds for the "
    f"other: the noise of the real runs. {BANDS}"
)


def predictions(worlds: Worlds) -> dict[str, tuple[str, Drawing]]:
    """Title and figure of every real comparison that simulated runs predict, by the figure's name.

    The figure has its tables below.
    """
    pairs = [
        (slug, real, simulated, traces)
        for real, slug in zip(worlds, slugs(worlds), strict=True)
        for simulated in worlds
        if (traces := alike(simulated.comparison, real.comparison))
    ]
    names = file_names(slug for slug, *_ in pairs)
    drawn = ((real.name, _drawing(real, simulated, traces)) for _, real, simulated, traces in pairs)
    return dict(zip((f"{name}-agreement" for name in names), drawn, strict=True))


def _drawing(
    real: ReportedComparison, simulated: ReportedComparison, traces: dict[str, Trace]
) -> Drawing:
    cells = compare_cells(real.comparison, {MEASURED: traces})
    tables = ((CELLS, cell_table(cells)), (MEANS, mean_table(cells)))
    below = join(small_table(how, table.head, table.rows) for how, table in tables)
    predicted = select(simulated.dynamics, simulated.dynamics["arm"].isin(list(traces)))
    figure = overlay(real.dynamics, predicted, real.titles)
    alt, caption = "FR, MR and pass@1 of real and simulated runs per arm", f"{simulated.name}."
    return Drawing(figure, alt, caption, below=below)


def agreements(worlds: Worlds) -> Html | None:
    """How to read them, then the figure and the table of every prediction; None without any."""
    parts = [
        join([tag("h3", title), shown(drawing, name, title)])
        for name, (title, drawing) in predictions(worlds).items()
    ]
    return join([tag("p", _HOW, class_="how"), *parts]) if parts else None
