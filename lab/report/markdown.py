"""Comparisons as Markdown: the same numbers as on the page, for a docs folder or an issue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pandas as pd

from lab.arms import BASELINE, GUARD, MATCHED, rule_of, title
from lab.columns import floats, where
from lab.compare.collection import Comparison
from lab.compare.own_best import SEED, own_best
from lab.compare.rule_table import rule_rows, rule_table
from lab.compare.step_sizes import difference, over_steps
from lab.compare.tables import METRICS
from lab.report.content.digest import ReportedComparison
from lab.report.rule_markdown import effort_markdown, escaped, rule_markdown
from lab.stats.paired import Estimate, estimate
from lab.stats.words import difference as difference_text
from lab.stats.words import mean_sd

_EXTRA = (
    ("fr_peak", "highest flip rate of an epoch (% of problems)", 1),
    ("collapse", "flip rate collapses (epoch)", 1),
    ("drop", "pass@1 drops for good (epoch)", 1),
)
_COMPARED = (
    ("pass_final", "final pass@1"),
    ("maj_final", "final majority vote"),
    ("TotalDeg", "TotalDeg"),
)


def markdown(worlds: Sequence[ReportedComparison]) -> str:
    """All comparisons, and every arm at its own best where a task was run at several step sizes.

    Args:
        worlds: from `lab.report.content.digest.read`.
    """
    lines: list[str] = []
    for world in worlds:
        lines += [f"## {escaped(world.name)}", ""]
        lines += [f"* {escaped(finding.text)}" for finding in world.findings]
        lines += [f"* {escaped(note)}" for note in world.notes]
        rows = over_steps([world.comparison])
        lines += ["", *_metric_table(rows), "", *_difference_table(rows), ""]
    for found in _same_family(worlds):
        lines += _own_best(over_steps(found))
        lines += _rules(found)
    return "\n".join(lines).rstrip() + "\n"


def _same_family(worlds: Sequence[ReportedComparison]) -> Iterator[list[Comparison]]:
    """Yield comparisons that differ in their step size alone, where there are several."""
    families: dict[int, list[Comparison]] = defaultdict(list)
    for world in worlds:
        if world.comparison.step_size is not None:
            families[world.comparison.family].append(world.comparison)
    yield from (family for family in families.values() if len(family) > 1)


def _metric_table(rows: pd.DataFrame) -> Iterator[str]:
    arms = list(dict.fromkeys(rows["arm"]))
    yield "Mean ± standard deviation over the seeds (number of seeds)."
    yield ""
    yield from _head("", *(title(arm) for arm in arms))
    shown = [(m.name, f"{m.title} ({m.unit})", m.digits) for m in METRICS] + list(_EXTRA)
    for name, label, digits in shown:
        found = [estimate(floats(where(rows, arm=arm), name)) for arm in arms]
        if any(value.n for value in found):
            yield _line(label, *(_cell(value, digits) for value in found))


def _difference_table(rows: pd.DataFrame) -> Iterator[str]:
    """Paired differences against TTRL and against matched effort."""
    arms = list(dict.fromkeys(rows["arm"]))
    against = [arm for arm in (BASELINE, MATCHED) if arm in arms]
    if len(arms) < 2 or not against:
        return
    yield "Paired differences in points, 95 % t-interval; **bold** where it leaves zero out."
    yield ""
    yield from _head("", *(f"{label} - {title(b)}" for b in against for _, label in _COMPARED))
    for arm in arms:
        cells = [
            "" if arm == base else difference_text(difference(rows, arm, base, metric))
            for base in against
            for metric, _ in _COMPARED
        ]
        yield _line(title(arm), *cells)


def _own_best(rows: pd.DataFrame) -> Iterator[str]:
    """Ranking of the arms if each may choose its step size."""
    yield "## Every arm at its own best step size"
    yield ""
    yield "Final pass@1 in %, mean ± standard deviation, at each step size:"
    yield ""
    steps = sorted(set(rows["step_size"]))
    yield from _head("", *(f"{step:g}" for step in steps))
    arms = list(dict.fromkeys(rows["arm"]))
    for arm in arms:
        own = where(rows, arm=arm)
        parts = [estimate(floats(where(own, step_size=step), "pass_final")) for step in steps]
        yield _line(title(arm), *(_cell(part) for part in parts))
    yield ""
    yield "Each half of the seeds is judged at the step size that was best on the other half, by"
    yield "final pass@1; only seeds that were run at every step size take part."
    yield ""
    best = own_best(rows, ["step_size"], unit=SEED)
    against = [arm for arm in (GUARD, "memory_guard") if arm in arms]
    heads = [f"{title(arm)} minus it, points" for arm in against]
    yield from _head("", "chosen", "final pass@1 (%)", "TotalDeg (% of problems)", *heads)
    for arm in arms:
        own = where(best, arm=arm)
        chosen = ", ".join(f"{step:g}" for step in sorted(set(own["step_size"])))
        numbers = [_cell(estimate(floats(own, name))) for name in ("pass_final", "TotalDeg")]
        gaps = [
            "" if arm == base else difference_text(difference(best, base, arm, "pass_final"))
            for base in against
        ]
        yield _line(title(arm), chosen, *numbers, *gaps)
    yield ""


def _rules(found: Sequence[Comparison]) -> list[str]:
    """The table of rules, if a rule other than TTRL was run with it."""
    arms = {arm for comparison in found for arm in comparison.arms}
    ruled = any(rule_of(arm) not in (None, BASELINE) for arm in arms)
    if BASELINE not in arms or not ruled:
        return []
    rows = rule_rows(found)
    lines = ["", "## Rules", "", *rule_markdown(rule_table(rows)).splitlines()]
    lines += ["", "Points of pass@1 beyond TTRL at equal effort, by step size:", ""]
    return [*lines, *effort_markdown(rows).splitlines(), ""]


def _cell(value: Estimate, digits: int = 1) -> str:
    """Return mean, standard deviation and number of seeds; empty where nothing was measured."""
    return f"{mean_sd(value.mean, value.sd, digits)} ({value.n})" if value.n else ""


def _head(*cells: str) -> Iterator[str]:
    yield _line(*cells)
    yield _line(*("---" for _ in cells))


def _line(*cells: str) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"
