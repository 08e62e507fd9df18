"""The figures of the page, one section per question, one file per group of questions."""

from __future__ import annotations

from lab.report.elements.html import Html, join, tag
from lab.report.elements.plots import plot
from lab.report.sections.across import ACROSS, ACROSS_NAME, HOW, across
from lab.report.sections.guarding import GUARDING
from lab.report.sections.outcome import OUTCOME
from lab.report.sections.section import Absent, Drawing, Section, render
from lab.report.sections.training import TRAINING
from lab.report.sections.trap import TRAP

__all__ = [
    "ACROSS",
    "ACROSS_NAME",
    "Absent",
    "Drawing",
    "Section",
    "across",
    "figure_sections",
    "render",
    "render_across",
]


def figure_sections() -> list[Section]:
    """The sections in the order of the page."""
    return [*OUTCOME, *TRAINING, *TRAP, *GUARDING]


def render_across(drawing: Drawing) -> Html:
    """The figure of all comparisons, and how to read it.

    Args:
        drawing: from `across`.
    """
    return join(
        [tag("p", HOW, class_="how"), plot(drawing.figure, f"{ACROSS_NAME}-0", drawing.alt)]
    )
