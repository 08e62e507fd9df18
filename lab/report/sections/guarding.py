"""Actions of the guard, and their cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab import figures
from lab.columns import floats, group_mean, ints
from lab.errors import UserError
from lab.figures.curves import has_data, rows
from lab.figures.overhead import overhead_bars
from lab.figures.sensitivity import sensitivity_curves
from lab.measures.dynamics import ROUTE_COLUMNS
from lab.measures.overhead import WARM_UP
from lab.report.content import derived
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html
from lab.report.sections.section import BANDS, Absent, Drawing, Piece, Section, small_table
from lab.stats.paired import estimate
from lab.stats.words import mean_sd
from lab.trace.schema import ROUTES

_GROUP = "The guard"
_USE = (
    ("truncated", "responses cut at their limit", "% of votes", 100.0),
    ("entropy", "policy entropy", "nats per token", 1.0),
    ("gpu_memory_gb", "peak memory of the trainer", "GB", 1.0),
    ("tokens_per_gpu_second", "sampled by the whole step", "tokens per GPU second", 1.0),
    ("share_of_peak", "peak speed used in the update", "%", 100.0),
)
"""Column of the steps, name, unit, and factor from the one to the other."""


def _routes(world: ReportedComparison) -> list[Piece]:
    return _per_guard(world, figures.routes, "Routes of the visits over training", _route_shares)


def _guard(world: ReportedComparison) -> list[Piece]:
    alt = "Weights, touched visits and minority share over training"
    return _per_guard(world, figures.guard_action, alt, _activity)


def _per_guard(
    world: ReportedComparison,
    draw: Callable[[pd.DataFrame], go.Figure],
    alt: str,
    caption: Callable[[pd.DataFrame], str],
) -> list[Piece]:
    if not world.guarded:
        return [Absent("No arm of this comparison has a guard.")]
    if not has_data(world.dynamics, ["weight"]):
        return [Absent("No visit of training so far.")]
    return [
        Drawing(
            draw(world.of_arm(arm)),
            f"{alt}, {world.titles[arm]}",
            f"{world.titles[arm]}: over the whole training {caption(world.of_arm(arm))}.",
        )
        for arm in world.guarded
    ]


def _activity(own: pd.DataFrame) -> str:
    """Share of the training visits that the guard acted on."""
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
    """Share over the whole training with its spread over the replicates."""
    return f"{_mean(own, column, 100.0)} %"


def _mean(own: pd.DataFrame, column: str, factor: float) -> str:
    """Mean over the replicates' means, and their spread; nothing where it was not measured."""
    _, place = np.unique(ints(own, "replicate"), return_inverse=True)
    value = estimate(group_mean(factor * floats(own, column), place, 1 + int(place.max())))
    return mean_sd(value.mean, value.sd) if value.n else ""


def _overhead(world: ReportedComparison) -> list[Piece]:
    if world.comparison.world != "real":
        return [Absent("Only real runs are timed: a simulated step has no model to wait for.")]
    try:
        seconds = derived.seconds(world)
    except UserError as error:
        return [Absent(f"Not measured: {error}.")]
    figure = overhead_bars(seconds, titles=world.titles)
    return [Drawing(figure, "Time per training step by phase and arm", below=_use(world))]


def _use(world: ReportedComparison) -> Html | None:
    """Table of what the steps tell of responses and of the GPUs; None where they tell nothing."""
    arms = world.comparison.arms
    steps = {arm: world.comparison.traces[arm].steps for arm in arms}
    warm = {arm: rows(table, ints(table, "step") > WARM_UP) for arm, table in steps.items()}
    found: list[list[str]] = []
    for column, title, unit, factor in _USE:
        own = [warm[arm].reindex(columns=["replicate", column]) for arm in arms]
        cells = [_mean(part, column, factor) if len(part) else "" for part in own]
        if any(cells):
            found.append([f"{title} ({unit})", *cells])
    if not found:
        return None
    how = "Mean ± standard deviation over the replicates, the first step left out."
    return small_table(how, ("", *(world.titles[arm] for arm in arms)), found)


def _sensitivity(world: ReportedComparison) -> list[Piece]:
    try:
        table = derived.sensitivities(world)
    except UserError:
        return [Absent("No run of a guard with another value of tau_FR, W or beta_max.")]
    figure = sensitivity_curves(table, world.titles)
    return [Drawing(figure, "Metrics over the guard's settings, one at a time")]


GUARDING = (
    Section(
        "routes",
        _GROUP,
        "Where the guard sends the problems",
        "Share of visits on each route: at risk (flips often), high risk (flipped often before and "
        "is now confident), skipped, stable (all others). Means over the replicates; the spread "
        "stands below and in the hover.",
        _routes,
    ),
    Section(
        "guard",
        _GROUP,
        "What the guard did",
        "From the top: the mean weight of a problem's loss (1 is plain TTRL); the share of visits "
        "that each rule touched; the mean share of the loss that went to minority answers. "
        + BANDS,
        _guard,
    ),
    Section(
        "overhead",
        _GROUP,
        "What a training step costs",
        "Mean time of a step by phase, as a share of the whole step of TTRL on the same machine "
        "and seed; the first step is left out. The black bar is one standard deviation of the "
        "whole step over the seeds. Runs that shared their machine with others disturb each other.",
        _overhead,
    ),
    Section(
        "sensitivity",
        _GROUP,
        "How much the guard's settings matter",
        "One setting at a time, the others at their defaults (dotted line). A grey area joins "
        "values that are one and the same algorithm, for FR is a multiple of 1/W: what differs "
        "within it is noise. Bands are one standard deviation over the replicates.",
        _sensitivity,
    ),
)
"""In the order of the page."""
