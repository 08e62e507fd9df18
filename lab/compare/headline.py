"""The three numbers that matter, per world, each with its interval and a verdict in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.arms import BASELINE, GUARD, MATCHED, title
from lab.columns import floats, groups, ints, select
from lab.compare.collection import Comparison
from lab.compare.effort import achieved_ratio
from lab.compare.own_best import best_among
from lab.compare.tables import metrics, metrics_of
from lab.errors import UserError
from lab.stats.paired import Estimate, estimate, paired
from lab.stats.words import counted, interval_of

RIVALS = ("frozen", "memory")
"""The simplest rivals of a guard (docs/method.md)."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a finding."""

    metric: str
    label: str
    unit: str
    value: Estimate
    text: str
    """The number, its interval and what it shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One of the numbers that matter."""

    key: str
    title: str
    parts: tuple[Quantity, ...]
    note: str = ""
    """Origin of the number, or the reason why there is none."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        numbers = "; ".join(part.text for part in self.parts) or "not measured"
        return f"{self.title}: {numbers}" + (f" ({self.note})" if self.note else "")


def headline(comparison: Comparison, table: pd.DataFrame | None = None) -> list[Finding]:
    """TTRL's degradation, the guard's gain over matched effort, and a rival's over the guard.

    Args:
        comparison: at best with the arms ttrl, guard, matched, frozen and memory; a finding whose
            arms are missing says so.
        table: from `lab.compare.tables.metrics`, if at hand.
    """
    table = metrics(comparison) if table is None else table
    return [_damage(table), _guard(comparison, table), _rival(table)]


def _damage(table: pd.DataFrame) -> Finding:
    name = f"Problems that {title(BASELINE)} makes worse"
    if BASELINE not in _arms(table):
        return Finding("damage", name, (), f"no run of {title(BASELINE)}")
    value = estimate(floats(metrics_of(table, BASELINE), "TotalDeg"))
    text = f"TotalDeg {value.mean:.1f} % [{interval_of(value, 'replicate', signed=False)}]"
    part = Quantity("TotalDeg", "TotalDeg", "% of problems", value, text)
    return Finding("damage", name, (part,) if value.n else ())


def _guard(comparison: Comparison, table: pd.DataFrame) -> Finding:
    name = f"What {title(GUARD)} saves beyond matched effort"
    if lacking := _lacking(table, GUARD, MATCHED):
        return Finding("guard", name, (), lacking)
    try:
        traces = comparison.traces
        ratio = achieved_ratio(traces[MATCHED].steps, traces[GUARD].steps)
        note = f"the matched run moved {ratio:.2f} times as far as the guard's"
    except UserError as error:
        note = str(error)
    guard, matched = metrics_of(table, GUARD), metrics_of(table, MATCHED)
    return Finding("guard", name, _saved(guard, matched), note)


def _rival(table: pd.DataFrame) -> Finding:
    name = f"What the best simple rival saves beyond {title(GUARD)}"
    there = [arm for arm in RIVALS if arm in _arms(table)]
    if lacking := _lacking(table, GUARD) or ("" if there else _lacking(table, *RIVALS)):
        return Finding("rival", name, (), lacking)
    guard = metrics_of(table, GUARD)
    if len(there) == 1:
        note = f"{title(there[0])}, the only rival run"
        return Finding("rival", name, _saved(metrics_of(table, there[0]), guard), note)
    best = _best(table, there)
    chosen = " and ".join(
        f"{title(arm)} in {counted(len(part), 'pair')}" for (arm,), part in groups(best, ["arm"])
    )
    note = f"{chosen}; each half of the seeds has the rival of lower TotalDeg on the other half"
    return Finding("rival", name, _saved(best.set_index("replicate"), guard), note)


def _best(table: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    """Return the rows of the best arm, chosen without the replicates that it is judged by."""
    # Only replicates that are compared may choose.
    paired = metrics_of(table, GUARD).index
    rows = table.reset_index().assign(kept=-table["TotalDeg"].to_numpy())
    rows = select(rows, np.isin(ints(rows, "replicate"), paired.to_numpy()))
    return best_among(rows, arms, [], "kept")


def _saved(first: pd.DataFrame, against: pd.DataFrame) -> tuple[Quantity, ...]:
    """Return how much less an arm degrades and how much more it scores; above zero is better."""
    fewer = paired(pd.Series(against["TotalDeg"]), pd.Series(first["TotalDeg"]))
    higher = paired(pd.Series(first["pass_final"]), pd.Series(against["pass_final"]))
    return (
        _quantity("TotalDeg", "TotalDeg saved", fewer),
        _quantity("pass_final", "final pass@1 gained", higher),
    )


def _quantity(metric: str, label: str, value: Estimate) -> Quantity:
    if value.n == 0:
        return Quantity(metric, label, "points", value, f"{label}: no pair of the same seed")
    numbers = f"{value.mean:+.1f} points [{interval_of(value, 'pair')}]"
    shown = value.shows("better", "worse")
    return Quantity(metric, label, "points", value, f"{label} {numbers}, {shown}")


def _arms(table: pd.DataFrame) -> list[str]:
    return list(table.index.unique("arm"))


def _lacking(table: pd.DataFrame, *arms: str) -> str:
    missing = [title(arm) for arm in arms if arm not in _arms(table)]
    return f"no run of {' or '.join(missing)}" if missing else ""
