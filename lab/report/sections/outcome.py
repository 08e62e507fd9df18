"""Effect of training on the problems, and differences between the arms beyond noise."""

from __future__ import annotations

from collections.abc import Iterator

from lab import figures
from lab.columns import floats
from lab.compare.tables import METRICS, metrics_of
from lab.figures.change import change_heatmap
from lab.figures.migration import label_migration
from lab.figures.style import FATE_COLOURS
from lab.report.content import derived
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html
from lab.report.elements.numbers import mean_and_sd
from lab.report.sections.section import Absent, Drawing, Piece, Section, small_table
from lab.stats.paired import estimate

NO_PAIR = "Nothing to pair: no two arms share a seed, or their scores were not measured."
PAIR_METRICS = ("pass_final", "TotalDeg")
_GROUP = "What came of it"


def _fates(world: ReportedComparison) -> list[Piece]:
    if reason := derived.no_fates(world):
        return [Absent(reason)]
    figure = figures.fate_bars(world.metrics, world.titles)
    return [Drawing(figure, "Stacked bars of fates per arm", below=_fate_table(world))]


def _fate_table(world: ReportedComparison) -> Html:
    """The bars' numbers with their spread, which a printed bar cannot show."""
    arms = world.comparison.arms
    rows = [[fate, *(_share(world, arm, fate) for arm in arms)] for fate in (*FATE_COLOURS, "L/D")]
    how = "Mean ± standard deviation over the replicates, % of problems."
    return small_table(how, ("", *(world.titles[arm] for arm in arms)), rows)


def _share(world: ReportedComparison, arm: str, fate: str) -> Html:
    value = estimate(floats(metrics_of(world.metrics, arm), fate))
    if fate == "L/D":
        return mean_and_sd(value.mean, value.sd, 2, "undefined")
    return mean_and_sd(value.mean, value.sd)


def _paired(world: ReportedComparison) -> list[Piece]:
    if not world.pairs:
        return [Absent("No reference arm (TTRL or TTRL at matched effort) with another arm.")]
    return list(_against(world))


def _against(world: ReportedComparison) -> Iterator[Piece]:
    for reference, pairs in world.pairs.items():
        heading = f"Against {world.titles[reference]}"
        measured = set(pairs["metric"][pairs["n"] > 0])
        shown = [m for m in METRICS if m.name in PAIR_METRICS and m.name in measured]
        if not shown:
            yield Absent(NO_PAIR, heading)
            continue
        figure = figures.paired_differences(pairs, shown, world.titles)
        alt = f"Paired differences against {world.titles[reference]} with intervals"
        yield Drawing(figure, alt, heading=heading)


def _change(world: ReportedComparison) -> list[Piece]:
    if reason := derived.no_fates(world):
        return [Absent(reason)]
    figure = change_heatmap(derived.changes(world), world.titles)
    return [Drawing(figure, "Heat map of the mean change of label accuracy per fate and arm")]


def _migration(world: ReportedComparison) -> list[Piece]:
    if reason := derived.no_fates(world):
        return [Absent(reason)]
    figure = label_migration(derived.migrations(world), world.titles)
    return [Drawing(figure, "Bubbles of initial against final label accuracy per arm")]


OUTCOME = (
    Section(
        "fates",
        _GROUP,
        "What became of the problems",
        "Each bar is all problems of an arm, sorted by what training did to them, from always "
        "right (left) to lost or always wrong (right). A fate compares a problem's label "
        "accuracy, the share of votes for the true answer, over its first three visits with that "
        "over its last five. L/D, at the end of the bar, is Learned by Degraded.",
        _fates,
    ),
    Section(
        "paired",
        _GROUP,
        "Paired differences",
        "Each dot is an arm minus the reference on the same seeds, the bar its 95 % interval. "
        "Hollow grey dots are within noise: their interval contains zero, or there is none.",
        _paired,
    ),
    Section(
        "change",
        _GROUP,
        "How far the problems of each fate moved",
        "Mean of final minus initial label accuracy in points, with one standard deviation over "
        "the replicates. An empty cell has no such problem. Since fates are defined by this "
        "change, compare along a row and not down a column.",
        _change,
    ),
    Section(
        "migration",
        _GROUP,
        "Where the problems began and where they ended",
        "Initial against final label accuracy. The area of a bubble is the share of the problems, "
        "mean over the replicates. On the dotted line nothing changed; below it problems got "
        "worse.",
        _migration,
    ),
)
"""In the order of the page."""
