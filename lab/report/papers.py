"""Tables of the paper made from our runs, with the printed numbers next to ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd

from lab.arms import title
from lab.compare.collection import Comparison
from lab.compare.paper_tables import fate_table, footnotes, main_table, overhead_table, setting_of
from lab.compare.published import CELLS, METHOD_TITLES, TOTAL, Setting
from lab.compare.tables import METRICS, Metric
from lab.errors import UserError
from lab.report.digest import ReportedComparison
from lab.report.html import Html, join, mean_and_sd, table, tag

HOW = (
    "Ours is the mean ± standard deviation over n replicates, next to the paper's number. "
    "Ours are other models or a simulator, so only orders and signs can be compared with the "
    "paper's numbers; some of these contradict each other, as the footnotes say."
)
NOT_TIMED = "No timed run of TTRL, so the overhead table is left out."


def paper_tables(worlds: Sequence[ReportedComparison]) -> Html:
    """The tables `main`, `full_fates` and `overhead` of every comparison.

    Args:
        worlds: the comparisons, below each other.
    """
    parts = [_of_world(world) for world in worlds]
    return join([tag("p", HOW, class_="how"), *parts])


def paper_table(
    make: Callable[[Sequence[Comparison]], pd.DataFrame], world: ReportedComparison
) -> pd.DataFrame | None:
    """One of the paper's tables of one comparison; None where it has nothing for it.

    Args:
        make: out of `lab.compare.paper_tables`.
        world: the comparison.
    """
    try:
        found = make([world.comparison])
    except UserError:  # no timed run of TTRL
        return None
    return found if len(found) else None


def _of_world(world: ReportedComparison) -> Html:
    setting = setting_of(world.comparison.manifests[0])
    shown: list[Html] = []
    for heading, make, draw in (
        ("pass@1 at the end (%)", main_table, _main),
        ("Fates (% of problems)", fate_table, _fates),
        ("Change of the time per step against TTRL (%)", overhead_table, _main),
    ):
        found = paper_table(make, world)
        if found is not None and (setting is not None or make is overhead_table):
            shown.append(_with_notes(heading, found, world, draw))
        elif make is overhead_table and world.comparison.world == "real":
            shown.append(tag("p", NOT_TIMED, class_="absent"))
    return tag("div", tag("h3", world.name), _about(world, setting), *shown)


def _about(world: ReportedComparison, setting: Setting | None) -> Html:
    if setting is None:
        text = "The paper has no numbers on this task; ours stand in the table of all arms."
    elif world.comparison.world == "sim":
        text = f"Simulated with a population fitted to the paper's {setting.model}, {setting.data}."
    else:
        text = f"Held against the paper's {setting.model}, {setting.data}."
    return tag("p", text)


def _with_notes(
    heading: str,
    found: pd.DataFrame,
    world: ReportedComparison,
    draw: Callable[[pd.DataFrame, ReportedComparison], Html],
) -> Html:
    numbered, texts = footnotes(found)
    notes = [tag("li", text) for text in texts]
    listed = tag("ol", *notes, class_="footnotes") if notes else None
    return join([tag("h4", heading), draw(numbered, world), listed])


def _main(found: pd.DataFrame, world: ReportedComparison) -> Html:
    rows = [
        (_method(str(row["method"]), world), _ours(row), str(row["n"] or ""), _printed(row))
        for row in found.to_dict("records")
    ]
    return table(("method", "ours", "n", "paper"), rows, class_="narrow")


def _fates(found: pd.DataFrame, world: ReportedComparison) -> Html:
    cells = (*CELLS, TOTAL)
    rows = []
    for method, own in found.groupby("method", sort=False):
        by_fate = {str(row["fate"]): row for row in own.to_dict("records")}
        parts = (join([_ours(by_fate[c]), tag("br"), _printed(by_fate[c])]) for c in cells)
        rows.append((_method(str(method), world), *parts))
    caption = "Upper number ours, lower number the paper's."
    return table(("method", *cells), rows, caption, "small")


def _method(name: str, world: ReportedComparison) -> str:
    return world.titles.get(name, METHOD_TITLES.get(name, title(name)))


def _ours(row: dict[object, object]) -> Html:
    if not row["n"]:
        return tag("span", "not run", class_="spread")
    return mean_and_sd(float(str(row["mean"])), float(str(row["sd"])))


def _printed(row: dict[object, object]) -> Html | None:
    value = float(str(row["published"]))
    if math.isnan(value):
        return None
    note = tag("sup", str(row["footnote"])) if row["footnote"] else None
    return tag("span", f"{value:.1f}", note, class_="paper")


def arm_table(world: ReportedComparison) -> Html:
    """Mean and spread of every metric, metrics down and arms across."""
    counts = Counter(world.metrics.index.get_level_values("arm"))
    head = ["", *(_arm_head(world.titles[arm], counts[arm]) for arm in world.comparison.arms)]
    rows = [_row(world, metric) for metric in METRICS if _measured(world, metric)]
    return table(head, rows)


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
