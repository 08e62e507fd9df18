"""The numbers of the page as Markdown, for a docs folder or an issue, and as CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, MATCHED, rule_of, title
from lab.base.columns import TextTable, floats, select, where, write_csv
from lab.base.errors import one_line
from lab.base.files import whole_folder
from lab.base.stats import Estimate, estimate, mean_sd
from lab.base.stats import difference as difference_text
from lab.compare.collection import Comparison
from lab.compare.effort import METRIC, beyond_effort
from lab.compare.tables import difference, flat, over_steps, rule_rows, rule_table
from lab.measures.metrics import BY_NAME, PAGE
from lab.report import digest
from lab.report.digest import ReportedComparison, missing, overview, overview_table
from lab.report.first import HEADING, families, step_studies

_HEAD = (
    "arm", "chosen step", "final pass@1 (%)", "gained (points)", "minus {base} at its best",
    "minus {base} at equal effort", "labels right at the end (%)", "TotalDeg (%)", "Learned (%)",
    "update norm", "step time",
)  # fmt: skip
NOTE = (
    "Every arm at its own best step size: each half of the seeds is judged at the step size that "
    "was best on the other half, by final pass@1. Square brackets: 95 % t-interval over paired "
    "seeds; **bold** where a difference leaves zero out. *Equal effort*: {base}, interpolated "
    "between its step sizes to the arm's own mean update norm, seed by seed; empty where the arm "
    "moves more or less than {base} does at any step size. Update norm and step time are multiples "
    "of {base}'s, the former at each arm's best, the latter at equal step sizes. < and > mark a "
    "best at the smallest or largest step size: a better one may lie beyond."
)
_SIDES = {"smallest": "&lt;", "largest": ">"}


def rule_markdown(table: pd.DataFrame) -> str:
    """The table for a docs page or an issue.

    Args:
        table: from `lab.compare.tables.rule_table`.
    """
    name = title(BASELINE)
    head = [cell.format(base=name) for cell in _HEAD]
    lines = [NOTE.format(base=name), ""]
    lines += [_row(head), _row(["---"] * len(head))]
    lines += [_row(_cells(dict(row))) for row in table.to_dict("records")]
    return "\n".join(lines) + "\n"


def effort_markdown(rows: pd.DataFrame) -> str:
    """Gain of every arm at every step size over a baseline with the same update norm, in points.

    Args:
        rows: from `lab.compare.tables.rule_rows`.
    """
    beyond = rows.assign(beyond=beyond_effort(rows, METRIC))
    others = beyond.take(np.flatnonzero(np.asarray(rows["arm"] != BASELINE, bool)))
    return _over_steps(others, lambda own: difference_text(estimate(floats(own, "beyond"))))


def escaped(text: str) -> str:
    """Return a text of a trace that can open no cell, tag or link in Markdown."""
    for mark, harmless in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("`", "\\`")):
        text = text.replace(mark, harmless)
    return one_line(text)


def _over_steps(rows: pd.DataFrame, cell: Callable[[pd.DataFrame], str]) -> str:
    steps = sorted(set(floats(rows, "step_size")))
    lines = [_row(["arm", *(f"{step:g}" for step in steps)]), _row(["---"] * (1 + len(steps)))]
    for arm in dict.fromkeys(rows["arm"].tolist()):
        own = where(rows, arm=arm)
        cells = [cell(where(own, step_size=step)) for step in steps]
        lines.append(_row([escaped(title(arm)), *cells]))
    return "\n".join(lines) + "\n"


def _cells(row: dict[Any, Any]) -> list[str]:
    sides = "".join(_SIDES[side] for side in row["edge"].split(", ") if side)
    own = row["arm"] == BASELINE
    return [
        escaped(title(row["arm"])),
        f"{row['steps']} {sides}".rstrip(),
        _mean_sd(row["pass_final"]),
        difference_text(row["gain"]),
        "" if own else difference_text(row["against"]),
        "" if own else difference_text(row["effort"]),
        *(_mean_sd(row[name]) for name in ("label_final", "TotalDeg", "Learned")),
        _number(row["update"]),
        _number(row["seconds"]),
    ]


def _mean_sd(value: Estimate) -> str:
    return mean_sd(value.mean, value.sd)


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


_COMPARED = tuple(BY_NAME[name] for name in ("pass_final", "maj_final", "TotalDeg"))


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
    for metric in (*PAGE, *(BY_NAME[name] for name in ("fr_peak", "collapse", "drop"))):
        found = [estimate(floats(where(rows, arm=arm), metric.name)) for arm in arms]
        if any(value.n for value in found):
            yield _line(metric.label, *(_cell(value, metric.digits) for value in found))


def _difference_table(rows: pd.DataFrame) -> Iterator[str]:
    """Paired differences against TTRL and against matched effort."""
    arms = list(dict.fromkeys(rows["arm"]))
    against = [arm for arm in (BASELINE, MATCHED) if arm in arms]
    if len(arms) < 2 or not against:
        return
    yield "Paired differences in points, 95 % t-interval; **bold** where it leaves zero out."
    yield ""
    yield from _head("", *(f"{m.called} - {title(b)}" for b in against for m in _COMPARED))
    for arm in arms:
        cells = [
            "" if arm == base else difference_text(difference(rows, arm, base, metric.name))
            for base in against
            for metric in _COMPARED
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


_LONGEST = 60


def slugs(worlds: Sequence[ReportedComparison]) -> list[str]:
    """A distinct file name per comparison, such as `sim-llama-math500`.

    Args:
        worlds: the comparisons, in the order of the page.
    """
    found: list[str] = []
    for world in worlds:
        whole = f"{world.comparison.world}-{world.comparison.task}".lower()
        name = re.sub(r"[^a-z0-9]+", "-", whole)[:_LONGEST].strip("-") or "comparison"
        place = 2
        distinct = name
        while distinct in found:
            distinct, place = f"{name}-{place}", place + 1
        found.append(distinct)
    return found


def write_tables(worlds: Sequence[ReportedComparison], folder: Path | str) -> list[Path]:
    """Write the tables of all comparisons as CSV, one file each.

    Returns:
        The files.

    Raises:
        UserError: the folder cannot be written.
    """
    names = []
    with whole_folder(Path(folder)) as place:
        for world, slug in zip(worlds, slugs(worlds), strict=True):
            for name, table in tables(world):
                names.append(f"{slug}-{name}.csv")
                write_csv(table, place / names[-1])
    return [Path(folder) / name for name in names]


def tables(world: ReportedComparison) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and content of every table that a comparison has data for."""
    yield "arms", flat(overview(world))
    if (grid := world.comparison.grid) is not None:
        parts = {"no": grid.rows, "yes": grid.null}
        yield "steps", pd.concat([own.assign(null_model=is_null) for is_null, own in parts.items()])
    yield "metrics", world.metrics.reset_index().assign(seed=_seeds(world))
    yield "summary", _summary(world)
    for reference, pairs in world.pairs.items():
        yield f"paired-{reference}", pairs.assign(against=reference)
    yield "dynamics", _arm_first(world.dynamics)
    yield "windows", _arm_first(digest.windows(world))
    if digest.no_fates(world) is None:
        yield "fates", digest.fates(world)


def _summary(world: ReportedComparison) -> pd.DataFrame:
    """One row per arm and metric: mean, sd, n and the unit."""
    long = world.summary.stack("metric", future_stack=True).reset_index()
    known = select(long, long["n"].to_numpy() > 0)
    return known.assign(unit=[BY_NAME[name].unit for name in known["metric"]])


def _seeds(world: ReportedComparison) -> list[int]:
    replicates = world.metrics.index.get_level_values("replicate")
    return [world.comparison.pairs[replicate][0] for replicate in replicates]


def _arm_first(table: pd.DataFrame) -> pd.DataFrame:
    return table.reindex(columns=["arm", *(name for name in table.columns if name != "arm")])
