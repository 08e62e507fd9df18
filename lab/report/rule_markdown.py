"""The table of rules as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, title
from lab.base.columns import floats, where
from lab.base.errors import one_line
from lab.base.stats import Estimate, difference, estimate, mean_sd
from lab.compare.effort import beyond_effort
from lab.compare.own_best import METRIC

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
        table: from `lab.compare.step_sizes.rule_table`.
    """
    name = title(BASELINE)
    head = [cell.format(base=name) for cell in _HEAD]
    lines = [NOTE.format(base=name), ""]
    lines += [_row(head), _row(["---"] * len(head))]
    lines += [_row(_cells(dict(row))) for row in table.to_dict("records")]
    return "\n".join(lines) + "\n"


def steps_markdown(rows: pd.DataFrame) -> str:
    """Final pass@1 and TotalDeg of every arm at every step size, means in percent.

    Args:
        rows: from `lab.compare.step_sizes.rule_rows`.
    """
    return _over_steps(rows, _pair)


def effort_markdown(rows: pd.DataFrame) -> str:
    """Gain of every arm at every step size over a baseline with the same update norm, in points.

    Args:
        rows: from `lab.compare.step_sizes.rule_rows`.
    """
    beyond = rows.assign(beyond=beyond_effort(rows, METRIC))
    others = beyond.take(np.flatnonzero(np.asarray(rows["arm"] != BASELINE, bool)))
    return _over_steps(others, lambda own: difference(estimate(floats(own, "beyond"))))


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


def _pair(own: pd.DataFrame) -> str:
    score, lost = (estimate(floats(own, name)) for name in ("pass_final", "TotalDeg"))
    if score.n == 0:
        return ""
    return f"{score.mean:.1f}" + (f" / {lost.mean:.1f}" if lost.n else "")


def _cells(row: dict[Any, Any]) -> list[str]:
    sides = "".join(_SIDES[side] for side in row["edge"].split(", ") if side)
    own = row["arm"] == BASELINE
    return [
        escaped(title(row["arm"])),
        f"{row['steps']} {sides}".rstrip(),
        _mean_sd(row["pass_final"]),
        difference(row["gain"]),
        "" if own else difference(row["against"]),
        "" if own else difference(row["effort"]),
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
