"""Simulated runs of the measured policy over the real runs that they predict."""

from __future__ import annotations

from collections.abc import Sequence

from lab.compare.agreement import MEASURED, compare_cells, predicts
from lab.figures.window import overlay
from lab.report.content.agreement import CELLS, MEANS, cell_table, mean_table
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html, join, tag
from lab.report.elements.plots import plot
from lab.report.sections.section import BANDS, Drawing, small_table

AGREEMENT = "Real runs and their simulation"
AGREEMENT_NAME = "agreement"
HOW = (
    "The simulator's policy measured is the start model linearised over its token tree, trained "
    "with the learning rate and all other settings of the real runs; nothing is fitted to their "
    "outcome. The other half of the seeds is the error of one half of the real seeds for the "
    f"other: the noise of the real runs. {BANDS}"
)


def agreements(worlds: Sequence[ReportedComparison]) -> list[Drawing]:
    """Return a figure with its table for every real comparison that simulated runs predict.

    Args:
        worlds: the comparisons of the page.
    """
    return [
        _drawing(real, simulated)
        for real in worlds
        for simulated in worlds
        if predicts(simulated.comparison, real.comparison)
        and set(simulated.comparison.arms) & set(real.comparison.arms)
    ]


def render_agreements(drawings: Sequence[Drawing]) -> Html:
    """The figures below each other, and how to read them.

    Args:
        drawings: from `agreements`.
    """
    parts = [
        join([tag("h3", d.heading), plot(d.figure, f"{AGREEMENT_NAME}-{k}", d.alt), d.below])
        for k, d in enumerate(drawings)
    ]
    return join([tag("p", HOW, class_="how"), *parts])


def _drawing(real: ReportedComparison, simulated: ReportedComparison) -> Drawing:
    table = compare_cells(real.comparison, {MEASURED: simulated.comparison.traces})
    tables = [
        small_table(how, text.head, text.rows)
        for how, text in ((CELLS, cell_table(table)), (MEANS, mean_table(table)))
    ]
    return Drawing(
        overlay(real.dynamics, simulated.dynamics, real.titles),
        f"FR, MR and pass@1 of real and simulated runs per arm, {real.name}",
        heading=real.name,
        below=join(tables),
    )
