"""The numbers that matter as cards, and the table of all arms."""

from __future__ import annotations

from collections import Counter

from lab.compare.headline import Finding, Quantity
from lab.compare.tables import METRICS, Metric
from lab.report.content import words
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html, table, tag
from lab.report.elements.numbers import mean_and_sd
from lab.stats.words import interval_of


def cards(world: ReportedComparison) -> Html:
    """One card per finding: its numbers, their intervals and what they show."""
    return tag("ul", *(_card(finding) for finding in world.findings), class_="numbers")


def arm_table(world: ReportedComparison) -> Html:
    """Mean and spread of every metric, metrics down and arms across."""
    counts = Counter(world.metrics.index.get_level_values("arm"))
    head = ["", *(_arm_head(world.titles[arm], counts[arm]) for arm in world.comparison.arms)]
    rows = [_row(world, metric) for metric in METRICS if _measured(world, metric)]
    return table(head, rows)


def _card(finding: Finding) -> Html:
    parts = [_quantity(part) for part in finding.parts] or [tag("p", "not measured")]
    note = tag("p", f"{finding.note[:1].upper()}{finding.note[1:]}.", class_="by")
    return tag(
        "li",
        tag("h4", finding.title),
        tag("div", *parts, class_="parts"),
        note if finding.note else None,
    )


def _quantity(part: Quantity) -> Html:
    paired, value = part.unit == "points", part.value
    number = f"{value.mean:{'+' if paired else ''}.1f}"
    unit = f" points: {part.label}" if paired else f" {part.unit}"
    measured = value.n > 0
    interval = interval_of(value, "pair" if paired else "replicate", signed=paired)
    style = words.style(value)
    return tag(
        "div",
        tag("span", number, class_="value") if measured else None,
        tag("span", unit if measured else part.label, class_="unit"),
        tag("p", interval) if measured else None,
        tag("span", value.shows("better", "worse"), class_=f"tag {style}") if paired else None,
        class_=f"part {style}" if paired else "part",
    )


def _arm_head(title: str, count: int) -> Html:
    return tag("span", title, tag("span", f"n = {count}", class_="spread"))


def _measured(world: ReportedComparison, metric: Metric) -> bool:
    return bool(world.metrics[metric.name].notna().to_numpy().any())


def _row(world: ReportedComparison, metric: Metric) -> list[Html]:
    name = tag("span", metric.title, tag("span", f" ({metric.unit})", class_="spread"))
    return [name, *(_cell(world, arm, metric) for arm in world.comparison.arms)]


def _cell(world: ReportedComparison, arm: str, metric: Metric) -> Html:
    mean, sd = (float(world.summary.loc[arm, (metric.name, what)]) for what in ("mean", "sd"))
    undefined = "nothing degraded" if metric.name == "L/D" else "not measured"
    return mean_and_sd(mean, sd, metric.digits, undefined)
