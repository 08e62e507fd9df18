"""The first screen: one row per arm beside one curve, step sizes, simulated beside real runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, title
from lab.base.columns import finite_mean, floats, select, unique, where
from lab.base.stats import difference, estimate, mean_sd, paired
from lab.base.text_table import TextTable
from lab.compare.agreement import (
    CELLS,
    MEANS,
    MEASURED,
    cell_table,
    compare_cells,
    mean_table,
    predicts,
)
from lab.compare.collection import Comparison, Grid, of_steps
from lab.compare.own_best import METRIC, SEED, own_best, own_best_words
from lab.compare.step_sizes import over_steps
from lab.figures.style import arm_order
from lab.figures.training import PROGRESS_PANELS, arm_curves, overlay
from lab.report import words
from lab.report.digest import HOW, ReportedComparison, missing, overview_table
from lab.report.html import Child, Html, join, plot, table, tag
from lab.report.sections import BANDS, Drawing, small_table

HEADING = "Step sizes"
STEPS_HOW = (
    "Final pass@1 in % at each step size, mean over the replicates. Own best: each half of the "
    "replicates is judged at the step size that was best on the other half. Square brackets: 95 % "
    "t-intervals of paired differences in points, bold where they leave zero out."
)
NULL_HOW = (
    "With uncoupled problems (the null model) no problem moves another: what happens there is not "
    "caused by interference between problems."
)

_AT_BEST = ("own best", "pass@1 there (%)", "minus TTRL at its own", "problems worse there (%)")


@dataclass(frozen=True, slots=True)
class StepStudy:
    """One task over step sizes, or with the null model beside it."""

    name: str
    """Of its comparison, not escaped."""
    grid: Grid

    @property
    def several(self) -> bool:
        """There is more than one step size to choose from."""
        return len(unique(self.grid.rows, "step")) > 1

    def words(self) -> list[str]:
        """Sentences on the arms at their own best, first of the model itself, then of the null."""
        lines = []
        for rows, about in ((self.grid.rows, ""), (self.grid.null, "uncoupled problems: ")):
            if self.several and len(scored := _scored(rows)):
                lines += [about + line for line in own_best_words(scored, self.grid.seed)]
        if self.grid.failed:
            lines.append(f"warning: {self.grid.failed} arms and steps failed and are left out")
        return lines

    def how(self) -> str:
        """How to read the table."""
        return f"{STEPS_HOW} {NULL_HOW}" if len(self.grid.null) else STEPS_HOW

    def table(self) -> TextTable:
        """Final pass@1 of every arm at every step size and at its own best, the null model last."""
        steps = sorted(unique(self.grid.rows, "step"))
        head = ["", *(f"step {step:g}" for step in steps)]
        head += [
            "own best",
            "pass@1 there (%)",
            "minus TTRL at its own",
            "worse there (%)",
        ] * self.several
        start = _number(finite_mean(self.grid.rows, "pass_start"))
        rows = [["No training", *[start] * len(steps), *["", start, "", ""] * self.several]]
        rows += _lines(self.grid.rows, steps, "")
        rows += _lines(self.grid.null, steps, ", uncoupled problems")
        return TextTable(head, rows)


def step_studies(worlds: Sequence[ReportedComparison]) -> list[StepStudy]:
    """The studies among comparisons: several at different step sizes, or one with runs beside it.

    Args:
        worlds: the comparisons, in the order of the page.
    """
    found = [StepStudy(w.name, w.comparison.grid) for w in worlds if w.comparison.grid is not None]
    for family in families(worlds):
        found.append(StepStudy(family[0].title, of_steps(over_steps(family), SEED)))
    return [study for study in found if len(study.grid.rows)]


def families(worlds: Sequence[ReportedComparison]) -> list[list[Comparison]]:
    """Comparisons that differ in their step size alone, where there are several."""
    found: dict[int, list[Comparison]] = {}
    for world in worlds:
        if world.comparison.step_size is not None:
            found.setdefault(world.comparison.family, []).append(world.comparison)
    return [family for family in found.values() if len(family) > 1]


def _lines(rows: pd.DataFrame, steps: Sequence[float], what: str) -> Iterator[list[str]]:
    base = _best(rows, BASELINE)
    for arm in arm_order(rows["arm"]):
        own = where(rows, arm=arm)
        cells = [_number(finite_mean(where(own, step=step), METRIC)) for step in steps]
        if len(steps) > 1:
            best = _best(rows, arm)
            chosen = ", ".join(f"{step:g}" for step in sorted(unique(best, "step")))
            score, worse = (estimate(floats(best, name)) for name in (METRIC, "TotalDeg"))
            gap = "" if arm == BASELINE else difference(paired(_scores(best), _scores(base)))
            cells += [chosen, mean_sd(score.mean, score.sd), gap, mean_sd(worse.mean, worse.sd)]
        yield [title(arm) + what, *cells]


def _best(rows: pd.DataFrame, arm: str) -> pd.DataFrame:
    return own_best(where(rows, arm=arm), ["step"], METRIC)


def _scores(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(floats(rows, METRIC), rows["replicate"].to_numpy())


def _scored(rows: pd.DataFrame) -> pd.DataFrame:
    return select(rows, np.isfinite(floats(rows, METRIC)))


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.1f}"


FIRST = "first"
_PANEL_HEIGHT = 215


def first_screen(worlds: Sequence[ReportedComparison]) -> Html:
    """What a reader came for."""
    parts = [_world(world, place) for place, world in enumerate(worlds)]
    studies = [_study(study) for study in step_studies(worlds)]
    return tag("section", *parts, *studies, tag("p", HOW, class_="small-how"), class_="first")


def score_curve(world: ReportedComparison) -> Drawing:
    """Curve of pass@1 of every arm over training."""
    figure = arm_curves(world.dynamics, PROGRESS_PANELS[-1:], world.titles, _PANEL_HEIGHT)
    return Drawing(figure, "pass@1 of all arms over training")


def _world(world: ReportedComparison, place: int) -> Html:
    drawing = score_curve(world)
    found = [f for f in world.findings[1:] if any(part.value.n for part in f.parts)]
    lacking = missing(world)
    left = [
        text_table(overview_table(world)),
        _unread(world),
        tag("ul", *(tag("li", words.sentence(finding)) for finding in found)) if found else None,
        tag("p", lacking[0], ": ", tag("code", lacking[1]), class_="lacking") if lacking else None,
    ]
    drawn = plot(drawing.figure, f"{FIRST}-{place}", f"{drawing.alt}, {world.name}")
    pair = tag("div", tag("div", *left), drawn, class_="pair")
    return join([tag("h2", world.name), pair])


def _unread(world: ReportedComparison) -> Html | None:
    """One line on responses without an answer, for a real model."""
    if world.comparison.world != "real":
        return None
    share = finite_mean(world.metrics, "unread")
    return tag("p", f"Responses without a readable answer: {share:.1f} %.", class_="small-how")


def _study(study: StepStudy) -> Html:
    said = [tag("li", line) for line in study.words()]
    return join(
        [
            tag("h2", f"{HEADING}: {study.name}"),
            tag("ul", *said) if said else None,
            text_table(study.table()),
            tag("p", study.how(), class_="small-how"),
        ]
    )


def text_table(found: TextTable) -> Html:
    """A table of texts; a cell in ** as Markdown writes it is bold."""
    return table(found.head, [[_bold(cell) for cell in row] for row in found.rows])


def _bold(cell: str) -> Child:
    bold = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
    return tag("strong", cell[2:-2]) if bold else cell


AGREEMENT = "Real runs and their simulation"
AGREEMENT_NAME = "agreement"
AGREEMENT_HOW = (
    "The simulator's policy measured is the start model linearised over its token tree, trained "
    "with the learning rate and all other settings of the real runs; nothing is fitted to their "
    "outcome. The other half of the seeds is the error of one half of the real seeds for the "
    f"other: the noise of the real runs. {BANDS}"
)


def agreements(worlds: Sequence[ReportedComparison]) -> list[Drawing]:
    """Return a figure with its table for every real comparison that simulated runs predict."""
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
    return join([*parts, tag("p", AGREEMENT_HOW, class_="how")])


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
