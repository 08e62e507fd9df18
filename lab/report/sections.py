"""Sections of the page: one question each, what is drawn for it, and how to read that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, GUARD
from lab.base.columns import floats, group_mean, ints, select
from lab.base.errors import UserError
from lab.base.stats import estimate, some_of
from lab.figures import training
from lab.figures.outcomes import fate_bars, overhead_bars, paired_differences
from lab.figures.problems import auroc_curves, scissor_panels
from lab.figures.style import BANDS
from lab.measures import WINDOW
from lab.measures.dynamics import WARM_UP, run_windows, step_seconds, window_share, window_width
from lab.measures.fate import LOST
from lab.measures.problems import flip_rate_in_time, lost_problem_auroc, scissor
from lab.report import digest
from lab.report.digest import COMPARED, ReportedComparison, Worlds, by_arm, slugs, with_fates
from lab.report.html import Absent, Drawing, Html, Piece, absent, join, shown, small_table, tag

_USE = (
    ("truncated", "responses cut at their limit (% of votes)", 100.0),
    ("entropy", "policy entropy (nats per token)", 1.0),
    ("gpu_memory_gb", "peak memory of the trainer (GB)", 1.0),
    ("tokens_per_gpu_second", "sampled by the whole step (tokens per GPU second)", 1.0),
    ("share_of_peak", "peak speed used in the update (%)", 100.0),
)
"""Column of the steps, name, and factor from the one to the unit of the other."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page."""

    name: str
    """Of its anchor."""
    group: str
    """Of the contents that it stands in."""
    heading: str
    how: str
    """Explanation of the figures."""
    draw: Callable[[ReportedComparison], Iterable[Piece]]
    """Returns the drawings of one comparison."""
    needs_fates: bool = False
    """Is drawn only where a replicate has fates."""

    def named(self, world: ReportedComparison, slug: str) -> list[tuple[str, Piece]]:
        """The drawings of one comparison by their names, or the reason why there is none."""
        reason = digest.no_fates(world) if self.needs_fates else None
        pieces = list(self.draw(world)) if reason is None else [Absent(reason)]
        keys = zip(pieces, digest.file_names(piece.key for piece in pieces), strict=True)
        return [(f"{slug}-{self.name}{f'-{k}' * bool(piece.key)}", piece) for piece, k in keys]


def render(section: Section, worlds: Worlds) -> Html:
    """How to read the figures, and below it the comparisons side by side, stacked without room.

    Where no comparison has the data, the reasons stand alone: there is nothing to read.
    """
    named = [section.named(world, slug) for world, slug in zip(worlds, slugs(worlds), strict=True)]
    pieces = [piece for of_world in named for _, piece in of_world]
    reasons = {piece.why for piece in pieces if isinstance(piece, Absent)}
    drawn = any(isinstance(piece, Drawing) for piece in pieces)
    if not drawn and len(reasons) == 1:
        return absent(reasons.pop())
    columns = [
        tag("div", tag("h3", world.name), *(shown(p, name, world.name) for name, p in of_world))
        for world, of_world in zip(worlds, named, strict=True)
    ]
    how = tag("p", section.how, class_="how") if drawn else None
    return join([how, tag("div", *columns, class_="worlds")])


def _paired(world: ReportedComparison) -> Iterator[Piece]:
    if not world.pairs:
        yield Absent("No reference: neither TTRL with another arm nor a vote before training.")
    for reference, pairs in world.pairs.items():
        heading = f"Against {world.title(reference)}"
        measured = set(pairs["metric"][pairs["n"] > 0])
        shown = [metric for metric in COMPARED if metric.name in measured]
        if not shown:
            why = "Nothing to pair: no two arms share a seed, or their scores were not measured."
            yield Absent(why, heading=heading, key=reference)
            continue
        figure = paired_differences(pairs, shown, world.titles)
        alt = f"Paired differences {heading.lower()} with intervals"
        yield Drawing(figure, alt, heading=heading, key=reference)


def first(world: ReportedComparison) -> Drawing:
    """The one figure of the first screen."""
    figure = training.arm_curves(world.dynamics, training.PROGRESS_PANELS[-1:], world.titles, 215)
    return Drawing(figure, "pass@1 of all arms over training", BANDS)


def _window(world: ReportedComparison) -> Iterator[Piece]:
    windows = {arm: run_windows(world.of_arm(arm)) for arm in world.comparison.arms}
    shares = by_arm({arm: window_share(world.of_arm(arm), w) for arm, w in windows.items()})
    figure = training.training_window(world.dynamics, shares, world.titles)
    rows = [
        [m.label, *(_happened(world.of_arm(arm), w, m.name) for arm, w in windows.items())]
        for m in WINDOW
    ]
    how = "Mean ± standard deviation over the runs in which it happened."
    below = small_table(how, ("", *world.titles.values()), rows)
    alt = "FR, MR and pass@1 per arm with the extinction window shaded"
    yield Drawing(figure, alt, below=below)


def _happened(dynamics: pd.DataFrame, windows: pd.DataFrame, name: str) -> str:
    value = estimate(floats(windows, name))
    if value.n:
        return f"{value}{some_of(value.n, len(windows))}"
    source = floats(dynamics, "pass_at_1" if name in ("drop", "lead") else "flip_rate")
    measured = np.isfinite(source[ints(dynamics, "epoch") > 0]).any()
    return "never" if measured else "not measured"


def _lost(world: ReportedComparison) -> Iterator[Piece]:
    if not np.isfinite(floats(world.dynamics, "correct_vote_rate_lost")).any():
        yield Absent("No problem was lost.")
        return
    figure = training.lost_votes(world.dynamics, world.titles)
    # A curve of few problems is noisy.
    numbers = [
        f"{world.titles[arm]} {fates['fate'].isin(LOST).sum() / fates['replicate'].nunique():.1f}"
        for arm in world.comparison.arms
        if len(fates := world.comparison.fates(arm))
    ]
    caption = f"Lost problems per replicate on average: {', '.join(numbers)}."
    yield Drawing(figure, "Correct-vote rate of lost problems over training", caption)


def _scissor(world: ReportedComparison) -> Iterator[Piece]:
    # An arm without a degraded problem has no part in the figure.
    thirds = with_fates(world, scissor).dropna(subset="wins")
    if thirds.empty:
        yield Absent("No problem was degraded.")
        return
    figure = scissor_panels(thirds, with_fates(world, window_width), world.titles)
    yield Drawing(figure, "Wrong labels, survival space, wins and window of degraded problems")


def _prediction(world: ReportedComparison, arm: str) -> Piece:
    heading, visits = world.titles[arm], world.comparison.traces[arm].visits
    fates = world.comparison.fates(arm)
    try:
        table = lost_problem_auroc(visits, fates, np.random.default_rng(0))
        in_time = flip_rate_in_time(visits, fates)
    except UserError as error:
        return Absent(str(error), heading=heading, key=arm)
    if not np.isfinite(floats(table, "auroc")).any():
        return Absent("No problem at stake was lost, or none was kept.", heading=heading, key=arm)
    caption = (
        f"{100 * in_time:.0f} % of the lost problems had a flip rate above .3 before the last "
        "visit at which their label was right."
    )
    alt = f"AUROC of the prediction of lost problems by visit under {heading}"
    return Drawing(auroc_curves(table), alt, caption, heading=heading, key=arm)


def _guard(world: ReportedComparison) -> Iterator[Piece]:
    if not world.guarded:
        yield Absent("No arm of this comparison has a guard.")
    for arm in world.guarded:
        name, visits = world.titles[arm], world.comparison.traces[arm].visits
        visits = select(visits, ints(visits, "visit") > 0)
        if visits.empty:
            yield Absent("No visit of training so far.", heading=name, key=arm)
            continue
        visits = visits.assign(weighted=visits["weight"] < 1, minority=visits["n_minority"] > 0)
        columns = ("weighted", "minority", "skipped")
        weighted, minority, skipped = (_mean(visits, column, 100.0) for column in columns)
        caption = (
            f"{name}: over the whole training {weighted} % of the visits had a weight below "
            f"1, {minority} % a minority candidate, and {skipped} % were skipped."
        )
        alt = f"Weights, touched visits and minority share over training, {name}"
        yield Drawing(training.guard_action(world.of_arm(arm)), alt, caption, key=arm)


def _mean(rows: pd.DataFrame, column: str, factor: float) -> str:
    """Mean over the replicates' means, and their spread; nothing where it was not measured."""
    replicates, place = np.unique(ints(rows, "replicate"), return_inverse=True)
    return str(estimate(group_mean(factor * floats(rows, column), place, len(replicates))))


def _overhead(world: ReportedComparison) -> Iterator[Piece]:
    if world.comparison.world != "real":
        yield Absent("Only real runs are timed: a simulated step has no model to wait for.")
        return
    try:
        steps = {arm: trace.steps for arm, trace in world.comparison.traces.items()}
        figure = overhead_bars(step_seconds(steps), titles=world.titles)
    except UserError as error:
        yield Absent(f"Not measured: {error}.")
    else:
        machines = {str(run.machine) for run in world.comparison.manifests}
        caption = "The runs had different machines: their times do not compare."
        alt = "Time per training step by phase and arm"
        yield Drawing(figure, alt, caption * (len(machines) > 1), below=_use(world))


def _use(world: ReportedComparison) -> Html | None:
    columns = ["replicate", "step", *(column for column, *_ in _USE)]
    steps = [t.steps.reindex(columns=columns) for t in world.comparison.traces.values()]
    warm = [select(table, ints(table, "step") > WARM_UP) for table in steps]
    lines = ([name, *(_mean(t, column, factor) for t in warm)] for column, name, factor in _USE)
    rows = [line for line in lines if any(line[1:])]
    if not rows:
        return None
    how = "Mean ± standard deviation over the replicates, the first step left out."
    return small_table(how, ("", *world.titles.values()), rows)


_OUTCOME, _TRAINING = "What came of it", "What happened on the way"
_TRAP, _GUARD = "Why correct answers die out", "The guard"
SECTIONS = (
    Section(
        "fates",
        _OUTCOME,
        "What became of the problems",
        "Each bar is all problems of an arm, sorted by what training did to them, from always "
        "right (left) to lost or always wrong (right). A fate compares a problem's label "
        "accuracy, the share of votes for the true answer, over its first three visits with that "
        "over its last five. Numbers are means over the replicates ± one standard deviation; L/D, "
        "at the end of the bar, is Learned by Degraded.",
        lambda w: [Drawing(fate_bars(w.metrics, w.titles), "Stacked bars of fates per arm")],
        needs_fates=True,
    ),
    Section(
        "paired",
        _OUTCOME,
        "Paired differences",
        "Each dot is an arm minus the reference on the same seeds, the bar its 95 % interval. "
        "Hollow grey dots are within noise: their interval contains zero, or there is none.",
        _paired,
    ),
    Section(
        "progress",
        _TRAINING,
        "Flips, agreement and accuracy over training",
        "FR is the share of problems whose label changed since their last visit, MR the share of "
        "votes that the label got, pass@1 the chance that one response is right. A flip rate that "
        "falls while pass@1 falls too means that wrong answers have won. " + BANDS,
        lambda w: [
            Drawing(
                training.training_progress(w.dynamics, w.titles),
                "FR, MR and pass@1 of all arms over training",
            )
        ],
    ),
    Section(
        "window",
        _TRAINING,
        "The extinction window",
        "One panel per arm. The shade is the share of runs whose window is open: from the peak of "
        "FR to the epoch from which it stays below half of it. After that labels no longer change, "
        "and a wrong label is there to stay. " + BANDS,
        _window,
    ),
    Section(
        "lost",
        _TRAP,
        "Do the lost problems still vote right?",
        "Only problems that the arm itself made worse (Degraded or Marginal Degraded), so each arm "
        "has its own set and all curves must end low; how early they fall, and whether they ever "
        "rise again, is what to look at. " + BANDS,
        _lost,
        needs_fates=True,
    ),
    Section(
        "scissor",
        _TRAP,
        "The scissor: wrong labels gather votes, the correct answer loses its room",
        "Degraded problems of each arm, by thirds of their visits. a: share of them whose wrong "
        "label holds less than half of the votes. b: what the wrong label leaves to all other "
        "answers. c: visits at which the correct answer is the label. d: share of a problem's "
        "visits up to which the correct answer still holds a quarter of the votes. Bars are one "
        "standard deviation over the replicates.",
        _scissor,
        needs_fates=True,
    ),
    Section(
        "prediction",
        _TRAP,
        "Do the votes tell which problems will be lost?",
        "Only problems whose label was right before training and at the first visit. AUROC: chance "
        "that a lost problem of a run scores above a kept one, .5 for a score without information. "
        "All votes so far: a logistic regression, fitted on other replicates; it reads no true "
        "answer when it scores. Bands are 95 % bootstraps over replicates.",
        lambda w: (_prediction(w, arm) for arm in (BASELINE, GUARD) if arm in w.titles),
        needs_fates=True,
    ),
    Section(
        "guard",
        _GUARD,
        "What the guard did",
        "From the top: the mean weight of a problem's loss (1 is plain TTRL); the shares of visits "
        "with a weight below 1, with a minority candidate, MPS active or not, and left out; the "
        "mean share of the loss that went to minority answers. " + BANDS,
        _guard,
    ),
    Section(
        "overhead",
        _GUARD,
        "What a training step costs",
        "Mean time of a step by phase, as a share of the whole step of TTRL on the same machine "
        "and seed; the first step is left out. The black bar is one standard deviation of the "
        "whole step over the seeds. Runs that shared their machine with others disturb each other.",
        _overhead,
    ),
)
"""In the order of the page."""
