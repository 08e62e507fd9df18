"""Course of the training: flips, agreement and accuracy, run by run and on the mean."""

from __future__ import annotations

import pandas as pd

from lab import figures
from lab.columns import Floats, floats
from lab.figures.curves import of_arm
from lab.figures.runs import MOST_RUNS, run_lines
from lab.figures.window import training_window
from lab.report.content import derived
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html
from lab.report.sections.section import BANDS, Drawing, Piece, Section, small_table
from lab.stats.paired import estimate
from lab.stats.words import mean_sd

_GROUP = "What happened on the way"
_MARKS = (
    ("fr_peak", "highest FR", "% of problems", 100.0),
    ("peak", "FR peaks", "epoch", 1.0),
    ("collapse", "FR collapses", "epoch", 1.0),
    ("drop", "pass@1 drops", "epoch", 1.0),
    ("lead", "lead time", "epochs", 1.0),
)


def _progress(world: ReportedComparison) -> list[Piece]:
    figure = figures.training_progress(world.dynamics, world.titles)
    return [Drawing(figure, "FR, MR and pass@1 of all arms over training")]


def _window(world: ReportedComparison) -> list[Piece]:
    found = derived.windows(world)
    shares = derived.window_shares(world, found)
    figure = training_window(world.dynamics, shares, world.titles)
    alt = "FR, MR and pass@1 per arm with the extinction window shaded"
    return [Drawing(figure, alt, below=_window_table(world, found))]


def _window_table(world: ReportedComparison, found: pd.DataFrame) -> Html:
    arms = world.comparison.arms
    rows = []
    for name, title, unit, factor in _MARKS:
        cells = []
        for arm in arms:
            own = factor * floats(of_arm(found, arm), name)
            cells.append(_mark(own, len(own)))
        rows.append([f"{title} ({unit})", *cells])
    how = "Mean ± standard deviation over the runs in which it happened."
    return small_table(how, ("", *(world.titles[arm] for arm in arms)), rows)


def _mark(values: Floats, n_runs: int) -> str:
    value = estimate(values)
    if value.n == 0:
        return "never"
    some = "" if value.n == n_runs else f" ({value.n} of {n_runs})"
    return f"{mean_sd(value.mean, value.sd)}{some}"


def _runs(world: ReportedComparison) -> list[Piece]:
    figure = run_lines(world.dynamics, world.titles)
    return [Drawing(figure, "FR and pass@1 of every run over training")]


TRAINING = (
    Section(
        "progress",
        _GROUP,
        "Flips, agreement and accuracy over training",
        "FR is the share of problems whose label changed since their last visit, MR the share of "
        "votes that the label got, pass@1 the chance that one response is right. A flip rate that "
        "falls while pass@1 falls too means that wrong answers have won. " + BANDS,
        _progress,
    ),
    Section(
        "window",
        _GROUP,
        "The extinction window",
        "One panel per arm. The shade is the share of runs whose window is open: from the peak of "
        "FR to the epoch from which it stays below half of it. After that labels no longer change, "
        "and a wrong label is there to stay. " + BANDS,
        _window,
    ),
    Section(
        "each-run",
        _GROUP,
        "Every single run",
        "A thin line per run, the thick one is their mean: what a band of one standard deviation "
        f"may hide. At most {MOST_RUNS} runs of an arm are drawn.",
        _runs,
    ),
)
"""In the order of the page."""
