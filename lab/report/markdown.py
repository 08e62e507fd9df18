"""Comparisons as Markdown: the same numbers as on the page, for a docs folder or an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from lab.base.arms import BASELINE, MATCHED, rule_of, title
from lab.base.columns import floats, where
from lab.base.errors import one_line
from lab.base.stats import Estimate, estimate, mean_sd
from lab.base.stats import difference as difference_text
from lab.base.text_table import TextTable
from lab.compare.collection import Comparison
from lab.compare.step_sizes import difference, over_steps, rule_rows, rule_table
from lab.compare.tables import METRICS
from lab.report.digest import ReportedComparison, missing, overview_table
from lab.report.first import HEADING, families, step_studies
from lab.report.rule_markdown import effort_markdown, escaped, rule_markdown

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
        worlds: from `lab.report.digest.read`.
    """
    lines: list[str] = []
    for world in worlds:
        lines += [f"## {escaped(world.name)}", ""]
        lines += [*_table(overview_table(world)), ""]
        lines += [f"* {escaped(finding.text)}" for finding in world.findings if finding.parts]
        lines += [f"* {escaped(note)}" for note in world.notes]
        if (lacking := missing(world)) is not None:
            lines.append(f"* {escaped(lacking[0])}: `{one_line(lacking[1]).replace('`', '')}`")
        rows = over_steps([world.comparison])
        lines += ["", *_metric_table(rows), "", *_difference_table(rows), ""]
    for study in step_studies(worlds):
        lines += [f"## {escaped(f'{HEADING}: {study.name}')}", "", *_table(study.table()), ""]
        lines += [*(f"* {escaped(line)}" for line in study.words()), "", study.how(), ""]
    for found in families(worlds):
        lines += _rules(found)
    return "\n".join(lines).rstrip() + "\n"


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


def _table(found: TextTable) -> Iterator[str]:
    yield from _head(*found.head)
    yield from (_line(*row) for row in found.rows)


def _head(*cells: str) -> Iterator[str]:
    yield _line(*cells)
    yield _line(*("---" for _ in cells))


def _line(*cells: str) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"
