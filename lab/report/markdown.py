"""A report as Markdown, and the table of rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from lab.base.arms import BASELINE, VOTE, rule_of, title
from lab.base.columns import TextTable, floats, unique, where
from lab.base.errors import one_line
from lab.base.stats import difference as difference_text
from lab.base.stats import estimate, mean_sd
from lab.compare.tables import gap, over_steps, rule_rows, rule_table, with_vote
from lab.measures import BY_NAME, PAGE
from lab.report import digest

_RULES_HEAD = (
    "arm", "chosen step", "final pass@1 (%)", "gained (points)", "minus {base} at its best",
    "minus the vote before training", "minus {base} at equal effort",
    "labels right at the end (%)", "TotalDeg (%)", "Learned (%)", "update norm", "step time",
)  # fmt: skip
NOTE = (
    "Every arm at its own best step size: each half of the seeds is judged at the step size that "
    "was best on the other half, by final pass@1, a single seed at its own. Square brackets: 95 % "
    "t-interval over paired seeds; **bold** where a difference leaves zero out. *Equal effort*: "
    "{base}, interpolated between its step sizes to the arm's own mean update norm, seed by seed; "
    "empty where the arm moves more or less than {base} does at any step size. Update norm and "
    "step time are multiples of {base}'s, the former at each arm's best, the latter at equal step "
    "sizes. < and > mark a best at the smallest or largest step size: a better one may lie beyond."
)
_SIDES = {"smallest": "&lt;", "largest": ">"}
_COMPARED = {
    "pass_final": "final pass@1",
    "maj_final": "final majority vote",
    "TotalDeg": "TotalDeg",
}


def rule_markdown(table: pd.DataFrame) -> str:
    """`lab.compare.tables.rule_table` for a docs page or an issue."""
    base = title(BASELINE)
    rows = [_rule_cells(row) for row in table.to_dict("records")]
    lines = TextTable([cell.format(base=base) for cell in _RULES_HEAD], rows).markdown()
    return "\n".join([NOTE.format(base=base), "", *lines]) + "\n"


def _rule_cells(row: dict[Any, Any]) -> list[str]:
    sides = "".join(_SIDES[side] for side in row["edge"].split(", ") if side)
    is_base = row["arm"] == BASELINE
    return [
        escaped(title(row["arm"])),
        f"{row['steps']} {sides}".rstrip(),
        str(row["pass_final"]),
        difference_text(row["gain"]),
        "" if is_base else difference_text(row["against"]),
        "" if row["arm"] == VOTE else difference_text(row["vote"]),
        "" if is_base else difference_text(row["effort"]),
        *(str(row[name]) for name in ("label_final", "TotalDeg", "Learned")),
        *(mean_sd(row[name], digits=2) for name in ("update", "seconds")),
    ]


def escaped(text: str) -> str:
    """Return a text of a trace that can open no cell, tag or link in Markdown."""
    for mark, harmless in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("`", "\\`")):
        text = text.replace(mark, harmless)
    return one_line(text)


def _escaped(table: TextTable) -> Iterator[str]:
    head, *rows = [[escaped(cell) for cell in row] for row in (table.head, *table.rows)]
    return TextTable(head, rows).markdown()


def markdown(worlds: digest.Worlds, sweeps: Iterable[tuple[str, TextTable]] = ()) -> str:
    """All comparisons, every arm at its own best where there are several step sizes, and sweeps."""
    lines: list[str] = []
    for world in worlds:
        lines += [f"## {escaped(world.name)}", "", *_escaped(digest.overview_table(world)), ""]
        lines += [f"* {escaped(finding.text)}" for finding in world.findings if finding.parts]
        lines += [f"* {escaped(note)}" for note in world.notes]
        if (lacking := digest.missing(world)) is not None:
            lines.append(f"* {escaped(lacking[0])}: `{one_line(lacking[1]).replace('`', '')}`")
        rows = with_vote(over_steps([world.comparison]), ["replicate"])
        lines += ["", *_metric_table(world, rows), "", *_difference_table(world, rows), ""]
    for study in digest.step_studies(worlds):
        lines += [f"## {escaped(study.name)}", "", *_escaped(study.table()), ""]
        lines += [*(f"* {escaped(line)}" for line in study.words()), "", study.how(), ""]
    for family in digest.families(worlds):
        names = {arm for comparison in family for arm in comparison.arms}
        if BASELINE in names and any(rule_of(arm) not in (None, BASELINE) for arm in names):
            lines += ["", "## Rules", "", rule_markdown(rule_table(rule_rows(family)))]
    for name, table in sweeps:
        lines += ["", f"## {escaped(name)}", "", *_escaped(table)]
    return "\n".join(lines).rstrip() + "\n"


def _metric_table(world: digest.ReportedComparison, rows: pd.DataFrame) -> list[str]:
    names, lines = unique(rows, "arm"), []
    for metric in (*PAGE, *(BY_NAME[name] for name in ("fr_peak", "collapse", "drop"))):
        values = [estimate(floats(where(rows, arm=arm), metric.name)) for arm in names]
        texts = [f"{mean_sd(v.mean, v.sd, metric.digits)} ({v.n})" if v.n else "" for v in values]
        if any(texts):
            lines.append([metric.label, *texts])
    how = "Mean ± standard deviation over the seeds (number of seeds)."
    return [how, "", *_escaped(TextTable(["", *map(world.title, names)], lines))]


def _difference_table(world: digest.ReportedComparison, rows: pd.DataFrame) -> list[str]:
    names = unique(rows, "arm")
    against = [arm for arm in digest.REFERENCES if arm in names]
    if len(names) < 2 or not against:
        return []
    # No vote has fates.
    pairs = [(b, name) for b in against for name in _COMPARED if b != VOTE or name != "TotalDeg"]
    cells = [
        [world.title(arm), *(gap(rows, arm, base, metric) for base, metric in pairs)]
        for arm in names
    ]
    how = "Paired differences in points, 95 % t-interval; **bold** where it leaves zero out."
    head = ["", *(f"{_COMPARED[metric]} - {world.title(base)}" for base, metric in pairs)]
    return [how, "", *_escaped(TextTable(head, cells))]
