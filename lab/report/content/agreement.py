"""The tables of `lab.compare.agreement` as text, for a terminal, Markdown and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lab.arms import title
from lab.columns import finite_mean, groups, unique, where
from lab.compare.agreement import COPY, ERRORS, OTHER_HALF, mean_errors
from lab.compare.ranking import rankings
from lab.stats.words import with_interval

_ERRORS = dict(zip(ERRORS, ("final", "curve", "MR", "FR", "fates"), strict=True))
CELLS = "Final pass@1 in %, errors in points; curves of pass@1, MR and FR as root mean square."
MEANS = "Means over the cells."


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings."""

    head: list[str]
    rows: list[list[str]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table for a terminal."""
        every = [self.head, *self.rows]
        width = [max(len(row[k]) for row in every) for k in range(len(self.head))]
        for row in every:
            cells = [row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]
            yield "  ".join(cells).rstrip()

    def markdown(self) -> Iterator[str]:
        """Yield the lines of a table in Markdown."""
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            yield f"| {' | '.join(row)} |"


def cell_table(table: pd.DataFrame) -> TextTable:
    """The measured policy's row of every cell, with the noise floor of its final pass@1.

    Args:
        table: from `lab.agreement`.
    """
    several = len(unique(table, "task")) > 1
    head = ["lr", "arm", "real", "simulated", "final", "other half", *list(_ERRORS.values())[1:]]
    head = ["task"] * several + [*head, "r", "real arm - TTRL", "simulated"]
    rows = []
    for (task, lr, arm), part in groups(table, ["task", "lr", "arm"]):
        by_name = {str(row["prediction"]): row for row in part.to_dict("records")}
        own = next(r for n, r in by_name.items() if n not in (OTHER_HALF, COPY))
        floor = by_name.get(OTHER_HALF, {}).get("final", math.nan)
        errors = [_number(own[name]) for name in ERRORS]
        cells = [str(task)] * several + [f"{lr:g}", title(str(arm))]
        cells += [_number(own["real"]), _number(own["predicted"])]
        cells += [errors[0], _number(floor), *errors[1:], _number(own["r"], 2), _gain(own)]
        rows.append([*cells, _number(own["gain_predicted"], signed=True)])
    return TextTable(head, rows)


def mean_table(table: pd.DataFrame) -> TextTable:
    """The mean errors over the cells of every prediction, the real noise last.

    Args:
        table: from `lab.agreement`.
    """
    head = ["mean error, points", "cells", *_ERRORS.values(), "r", "arm - TTRL", "right signs"]
    rows = []
    for row in mean_errors(table).to_dict("records"):
        cells = [_number(row[name]) for name in ERRORS] + [_number(row["r"], 2)]
        signs = f"{row['right_signs']} of {row['signs']}" if row["signs"] else ""
        name, count = str(row["prediction"]), str(row["cells"])
        rows.append([name, count, *cells, _number(row["gain"]), signs])
    return TextTable(head, rows)


def ranking_table(table: pd.DataFrame) -> TextTable:
    """Kendall's tau of the arms by predicted and real final pass@1, means over the problem sets.

    Args:
        table: from `lab.agreement`.
    """
    found = rankings(table)
    lrs = sorted(unique(found, "lr"))
    rows = []
    for (name,), part in groups(found, ["prediction"]):
        taus = [finite_mean(where(part, lr=lr), "tau") for lr in lrs]
        rows.append([str(name), *(_number(tau, 2) for tau in taus)])
    return TextTable(["Kendall's tau over the arms", *(f"{lr:g}" for lr in lrs)], rows)


def _gain(row: dict[Any, Any]) -> str:
    """The real difference to TTRL with its interval; empty for TTRL itself."""
    values: Sequence[float] = [row[f"gain_{name}"] for name in ("real", "low", "high")]
    if math.isnan(values[0]):
        return ""
    return _number(values[0], signed=True) if math.isnan(values[1]) else with_interval(*values)


def _number(value: float, digits: int = 1, *, signed: bool = False) -> str:
    if math.isnan(value):
        return ""
    return f"{value:{'+' if signed else ''}.{digits}f}"
