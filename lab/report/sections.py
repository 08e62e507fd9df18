"""The figures of the page, one section per question, one figure per comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab import figures
from lab.columns import floats
from lab.dynamics import ROUTE_COLUMNS
from lab.figures.curves import has_data
from lab.report.digest import World
from lab.report.html import Html, join, tag
from lab.report.plots import absent, plot
from lab.schema import ROUTES
from lab.tables import METRICS, Metric

NO_TRUTH = "Not measured: the true answers of these problems are not known."
NO_PAIR = "Nothing to pair: no two arms share a seed, or their scores were not measured."
PAIR_METRICS = ("pass_final", "TotalDeg")
BANDS = "Lines are means over the replicates, bands one standard deviation of single replicates."


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page."""

    name: str
    """Of its anchor."""
    heading: str
    how: str
    """How to read the figures."""
    draw: Callable[[World, str], Html]
    """One comparison, and a name that is unique on the page, to its figures."""


def figure_sections() -> list[Section]:
    """The sections in the order of the page."""
    return [
        Section(
            "fates",
            "What became of the problems",
            "Each bar is all problems of an arm, sorted by what training did to them, from always "
            "right (left) to lost or always wrong (right). A fate compares a problem's label "
            "accuracy, the share of votes for the true answer, over its first three visits with "
            "that over its last five. The spread over replicates is in the hover and in the table.",
            _fates,
        ),
        Section(
            "progress",
            "Flips, agreement and accuracy over training",
            "FR is the share of problems whose label changed since their last visit, MR the share "
            "of votes that the label got, pass@1 the chance that one response is right. A flip "
            "rate that falls while pass@1 falls too means that wrong answers have won. " + BANDS,
            _progress,
        ),
        Section(
            "lost",
            "Do the lost problems still vote right?",
            "Only problems that the arm itself made worse (Degraded or Marginal Degraded), so each "
            "arm has its own set and all curves must end low; how early they fall, and whether "
            "they ever rise again, is what to look at. " + BANDS,
            _lost,
        ),
        Section(
            "routes",
            "Where the guard sends the problems",
            "Share of visits on each route: at risk (flips often), high risk (flipped often "
            "before and is now confident), skipped, stable (all others). The spread is in the "
            "hover.",
            _routes,
        ),
        Section(
            "guard",
            "What the guard did",
            "From the top: the mean weight of a problem's loss (1 is plain TTRL); the share of "
            "visits that each rule touched; the mean share of the loss that went to minority "
            "answers. " + BANDS,
            _guard,
        ),
        Section(
            "paired",
            "Paired differences",
            "Each dot is an arm minus the reference on the same seeds, the bar its 95 % interval. "
            "Hollow grey dots are within noise: their interval contains zero, or there is none.",
            _paired,
        ),
    ]


def render(section: Section, worlds: Sequence[World]) -> Html:
    """How to read it, and the comparisons side by side, stacked where there is no room."""
    columns = [
        tag("div", tag("h3", world.name), section.draw(world, f"{section.name}-{place}"))
        for place, world in enumerate(worlds)
    ]
    return join([tag("p", section.how, class_="how"), tag("div", *columns, class_="worlds")])


def _fates(world: World, name: str) -> Html:
    if not np.isfinite(floats(world.metrics, "TotalDeg")).any():
        return absent(NO_TRUTH)
    figure = figures.fate_bars(world.metrics, world.titles)
    return plot(figure, name, f"Stacked bars of fates per arm, {world.name}")


def _progress(world: World, name: str) -> Html:
    figure = figures.training_progress(world.dynamics, world.titles)
    return plot(figure, name, f"FR, MR and pass@1 of all arms over training, {world.name}")


def _lost(world: World, name: str) -> Html:
    if not has_data(world.dynamics, ["correct_vote_rate_lost"]):
        return absent("No problem was lost." if _truth_known(world) else NO_TRUTH)
    figure = figures.lost_votes(world.dynamics, world.titles)
    alt = f"Correct-vote rate of lost problems over training, {world.name}"
    return plot(figure, name, alt, _lost_counts(world))


def _lost_counts(world: World) -> str:
    """How many problems each curve stands on: few of them make a wild curve."""
    lost = floats(world.summary.xs("TotalDeg", axis=1, level="metric"), "mean")
    numbers = [
        f"{world.titles[arm]} {share / 100 * world.comparison.runs[arm][0].n_problems:.1f}"
        for arm, share in zip(world.summary.index, lost, strict=True)
        if np.isfinite(share)
    ]
    return f"Lost problems per replicate on average: {', '.join(numbers)}."


def _routes(world: World, name: str) -> Html:
    return _per_guard(
        world, name, figures.routes, "Routes of the visits over training", _route_shares
    )


def _guard(world: World, name: str) -> Html:
    alt = "Weights, touched visits and minority share over training"
    return _per_guard(world, name, figures.guard_action, alt, _activity)


def _per_guard(
    world: World,
    name: str,
    draw: Callable[[pd.DataFrame], go.Figure],
    alt: str,
    caption: Callable[[pd.DataFrame], str],
) -> Html:
    if not world.guarded:
        return absent("No arm of this comparison has a guard.")
    return join(
        plot(
            draw(world.of_arm(arm)),
            f"{name}-{place}",
            f"{alt}, {world.titles[arm]}, {world.name}",
            f"{world.titles[arm]}: over the whole training {caption(world.of_arm(arm))}.",
        )
        for place, arm in enumerate(world.guarded)
    )


def _activity(own: pd.DataFrame) -> str:
    """What share of the visits of training the rules touched."""
    weighted, minority, skipped = (
        _percent(own, column) for column in ("weighted_share", "minority_share", "skipped")
    )
    return (
        f"{weighted} of the visits had a weight below 1, {minority} a minority candidate, and "
        f"{skipped} were skipped"
    )


def _route_shares(own: pd.DataFrame) -> str:
    shares = [f"{_percent(own, c)} {ROUTES[code].lower()}" for code, c in ROUTE_COLUMNS.items()]
    return ", ".join(shares)


def _percent(own: pd.DataFrame, column: str) -> str:
    """Mean of a share over the epochs of all replicates; those have equally many visits."""
    return f"{100 * float(np.nanmean(floats(own, column))):.1f} %"


def _paired(world: World, name: str) -> Html:
    if not world.pairs:
        return absent("No reference arm (TTRL or TTRL at matched effort) beside another arm.")
    return join(
        _against(world, reference, f"{name}-{place}") for place, reference in enumerate(world.pairs)
    )


def _against(world: World, reference: str, name: str) -> Html:
    table = world.pairs[reference]
    measured = set(table["metric"][table["n"] > 0])
    shown: list[Metric] = [m for m in METRICS if m.name in PAIR_METRICS and m.name in measured]
    heading = tag("h4", f"Against {world.titles[reference]}")
    if not shown:
        return join([heading, absent(NO_PAIR)])
    figure = figures.paired_differences(table, shown, world.titles)
    alt = f"Paired differences against {world.titles[reference]} with intervals, {world.name}"
    return join([heading, plot(figure, name, alt)])


def _truth_known(world: World) -> bool:
    return has_data(world.dynamics, ["label_accuracy"])
