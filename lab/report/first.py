"""The first screen: sentences, arms beside one curve, step sizes, simulated and real runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from guard_core.rules import RULES
from lab.base.arms import BASELINE, GUARD, MATCHED, RANDOM_SKIP, matched_target, rule_of, title
from lab.base.columns import TextTable, finite_mean, floats, select, unique, where
from lab.base.stats import difference, estimate, interval, mean_sd, paired
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
from lab.compare.effort import METRIC, SEED, own_best, own_best_words
from lab.compare.tables import Finding, Quantity, over_steps
from lab.figures.style import arm_order
from lab.figures.training import PROGRESS_PANELS, arm_curves, overlay
from lab.report.digest import HOW, ReportedComparison, missing, overview_table
from lab.report.html import Child, Html, join, plot, table, tag
from lab.report.sections import BANDS, Drawing, small_table

NOISE = (
    "Every difference is paired by seed. It counts as within noise when its 95 % interval (t "
    "distribution over the pairs) contains zero; with few pairs only large differences can be "
    "shown, and with several comparisons on one page some cross the line by chance."
)

PLANTED = (
    "The tiny task is not a natural one. Some of its wrong rivals are planted: before any run the "
    "model was trained on a mixture of the right rule and two misconceptions, with slips. On the "
    "default problems the start model gives the right answer .61 of the probability mass, the "
    "other answers of the planted rules .085, and answers of neither .29. The task shows the "
    "mechanism in a real model under real GRPO; how often rivals are that strong in practice it "
    "cannot show."
)

SIMULATED = (
    "The simulator has no language model: a softmax policy over each problem's answers is moved by "
    "the same update and watched by the same guard. What it shows depends on the population and "
    "the coupling that were assumed."
)

LINEARISED = (
    "The simulator's policy measured is a real model, linearised over its token tree before any "
    "training and moved by the trainer's optimizer. No parameter of it was fitted to a run."
)

TABLE = (
    "Mean ± standard deviation over n replicates. TotalDeg is the share of problems that training "
    "made worse (Degraded and Marginal Degraded); L/D is Learned by Degraded, not defined where "
    "nothing degraded. The best pass@1 on the way is chosen with hindsight, from the true answers."
)

ARMS = {
    "ttrl": "The answer with most votes at this visit is the label; no guard.",
    "guard": "TTRL under the guard with the paper's settings: lower weights for confident "
    "flip-prone problems (FRS), a share of the loss for strong minority answers (MPS), random "
    "skipping of high-risk problems (RCSU).",
    "release": "TTRL under the guard as in the authors' released code.",
    "frs": "Only the guard's weights.",
    "mps": "Only the guard's minority share.",
    "rcsu": "Only the guard's skipping.",
    "matched": "TTRL without a guard, its learning rate multiplied by one constant so that it "
    "moves as far per step as the guard's run: what moving less does by itself. Only what the "
    "guard gains over this arm is its own.",
    "frozen": "The label is the majority before training and never changes.",
    "memory": "The label is the answer with most votes over all visits so far.",
    "memory_guard": "Vote memory under the guard.",
    RANDOM_SKIP: "TTRL that skips visits at random, as many as the guard skips: what skipping does "
    "by itself.",
    "positive": "TTRL that only rewards answers equal to the label and never punishes others.",
    "early_stop": "TTRL that stops training once too many labels flip.",
    "braked": "TTRL whose learning rate is halved at every batch while too many labels flip.",
    "kl": "TTRL with a KL penalty to the start model.",
    "memory_kl": "Vote memory with a KL penalty to the start model.",
    "averaged": "TTRL, evaluated with a moving average of its weights.",
    "recommended": "Vote memory whose labels change only by a clear lead, with a KL penalty.",
    "truth": "Trained on the true answers: the ceiling, which no label-free rule can pass.",
}
"""Arm to what it is trained on."""

_DUEL = {
    "guard": (title(GUARD), title(MATCHED)),
    "rival": ("The best simple rival ({note})", title(GUARD)),
}


def about(arm: str) -> str:
    """What an arm is trained on, in a sentence or two.

    Args:
        arm: its name, without settings that differ from the arm's own.
    """
    if arm in ARMS:
        return ARMS[arm]
    if (target := matched_target(arm)) is not None:
        return f"Moves as far per step as {title(target)}, without its guard: a control of effort."
    if arm.startswith(f"{RANDOM_SKIP}_"):
        return "Skips visits at random, as many as the guard that it is named after: a control."
    rule = rule_of(arm)
    if rule is None:
        return "An arm with settings of its own, which stand with the runs below."
    doc = (RULES[rule].__doc__ or "").split("\n\n")[0].replace("`", "")
    return f"{title(arm)}. {' '.join(doc.split())}"


def sentence(finding: Finding) -> str:
    """A finding with its uncertainty, and whether it is more than noise."""
    parts = [part for part in finding.parts if part.value.n]
    if not parts:
        return f"{finding.title}: not measured{_bracket(finding.note)}."
    if finding.key == "damage":
        value = parts[0].value
        worse = f"{value.mean:.1f} % of the problems worse"
        bounds = interval(value.low, value.high, signed=False)
        return f"{title(BASELINE)} makes {worse} (TotalDeg, {bounds})."
    subject, reference = _DUEL[finding.key]
    numbers = " and ".join(_part_text(part) for part in parts)
    subject = subject.format(note=finding.note)
    return f"{subject} {_outcome(parts)} {reference}: {numbers}."


def _part_text(part: Quantity) -> str:
    value = part.value
    facts = [interval(value.low, value.high)] if value.has_interval else []
    facts += [value.shows()] if value.within_noise else []
    return f"{part.label} {value.mean:+.1f} points ({', '.join(facts)})"


def _outcome(parts: Sequence[Quantity]) -> str:
    shown = [part.value.mean > 0 for part in parts if not part.value.within_noise]
    if not shown:
        return "shows no difference beyond noise from"
    if len(set(shown)) > 1:
        return "does better in one number and worse in the other than"
    side = "better" if shown[0] else "worse"
    some = len(shown) < len(parts)
    return (
        f"does {side} in one number, with the other within noise, than"
        if some
        else (f"does {side} than")
    )


def _bracket(note: str) -> str:
    return f" ({note})" if note else ""


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
        tag("ul", *(tag("li", sentence(finding)) for finding in found)) if found else None,
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
