"""Mechanism of the loss: votes on lost problems, and the scissor."""

from __future__ import annotations

import numpy as np

from lab import figures
from lab.columns import floats
from lab.figures.curves import has_data
from lab.figures.scissor import scissor_panels
from lab.report.content import derived
from lab.report.content.digest import ReportedComparison
from lab.report.sections.section import BANDS, Absent, Drawing, Piece, Section

_GROUP = "Why correct answers die out"


def _lost(world: ReportedComparison) -> list[Piece]:
    if not has_data(world.dynamics, ["correct_vote_rate_lost"]):
        return [Absent(derived.no_fates(world) or "No problem was lost.")]
    figure = figures.lost_votes(world.dynamics, world.titles)
    alt = "Correct-vote rate of lost problems over training"
    return [Drawing(figure, alt, _lost_counts(world))]


def _lost_counts(world: ReportedComparison) -> str:
    """Number of problems behind each curve; a curve of few problems is noisy."""
    lost = floats(world.summary.xs("TotalDeg", axis=1, level="metric"), "mean")
    numbers = [
        f"{world.titles[arm]} {share / 100 * world.comparison.runs[arm][0].n_problems:.1f}"
        for arm, share in zip(world.summary.index, lost, strict=True)
        if np.isfinite(share)
    ]
    return f"Lost problems per replicate on average: {', '.join(numbers)}."


def _scissor(world: ReportedComparison) -> list[Piece]:
    if reason := derived.no_fates(world):
        return [Absent(reason)]
    thirds = derived.thirds(world)
    if not has_data(thirds, ["wins"]):
        return [Absent("No problem was degraded.")]
    figure = scissor_panels(thirds, derived.widths(world), world.titles)
    return [Drawing(figure, "Wrong labels, survival space, wins and window of degraded problems")]


TRAP = (
    Section(
        "lost",
        _GROUP,
        "Do the lost problems still vote right?",
        "Only problems that the arm itself made worse (Degraded or Marginal Degraded), so each arm "
        "has its own set and all curves must end low; how early they fall, and whether they ever "
        "rise again, is what to look at. " + BANDS,
        _lost,
    ),
    Section(
        "scissor",
        _GROUP,
        "The scissor: wrong labels gather votes, the correct answer loses its room",
        "Degraded problems of each arm, by thirds of their visits. a: share of them whose wrong "
        "label holds less than half of the votes. b: what the wrong label leaves to all other "
        "answers. c: visits at which the correct answer is the label. d: share of a problem's "
        "visits up to which the correct answer still holds a quarter of the votes. Bars are one "
        "standard deviation over the replicates.",
        _scissor,
    ),
)
"""In the order of the page."""
