"""`rules.csv` and `rules.md`: every rule at its own best step, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lab.arms import BASELINE, arm, title
from lab.columns import floats
from lab.files import whole
from lab.paired import estimate, paired
from sim.costs import cpu_per_visit
from sim.frames import done, equal, groups, mean, unique, where
from sim.own_best import own_best
from sim.run import of_arm
from sim.sweep.plan import Sweep
from sim.sweep.winners import CHOSEN

TABLE, PAGE = "rules.csv", "rules.md"
COST_REPLICATES, COST_PROBLEMS, COST_ROUNDS = 64, 100, 3
"""What the cost of a visit is measured on."""
_METRIC = "pass_final"
_HEADS = {
    "title": "Arm",
    "best": "Best step",
    "gain": "pass@1 gained",
    "over_ttrl": "minus TTRL's",
    "TotalDeg": "TotalDeg %",
    "Learned": "Learned %",
    "update": "Update norm / TTRL",
    "cpu": "CPU / TTRL",
}
_NOTE = (
    "Every arm at the step that was best for it on the other half of the replicates; an edge mark "
    "(< or >) says that a best step ends the grid. Gains are points of pass@1 over no training, "
    "with 95 % t-intervals over paired replicates; nothing is corrected for many comparisons. The "
    "update norm is against that of TTRL at the same step and replicate. CPU per visit was "
    "measured on {replicates} replicates x {problems} problems in turn with TTRL's."
)


def write_rules(rows: pd.DataFrame, sweep: Sweep, folder: Path) -> list[str]:
    """Write the table as CSV and Markdown.

    Args:
        rows: of `run_sweep`.
        sweep: that they are of.
        folder: of the sweep.

    Returns:
        The page's lines, and the paths of both files.
    """
    table = rule_table(rows, [name for name in sweep.names if name != CHOSEN])
    table = table.merge(_costs(sweep), on="arm", how="left")
    with whole(folder / TABLE) as temporary:
        table.to_csv(temporary, index=False)
    lines = list(_page(table, [name for name in sweep.names if name != CHOSEN]))
    with whole(folder / PAGE) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*lines, str(folder / TABLE), str(folder / PAGE)]


def rule_table(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One row per cell and arm, see `_arm_row`, best gain first within a cell.

    Args:
        rows: of `run_sweep` over several steps.
        by: columns that make a cell.
    """
    rows = done(rows).drop_duplicates([*by, CHOSEN, "arm", "replicate"])
    tables = []
    for cell, part in groups(rows, by):
        best = own_best(part, [CHOSEN], _METRIC)
        ends = (min(unique(part, CHOSEN)), max(unique(part, CHOSEN)))
        plain = where(best, equal(best, "arm", BASELINE))
        best = _against_ttrl(best, where(part, equal(part, "arm", BASELINE)))
        found = [_arm_row(str(name), own, plain, ends) for (name,), own in groups(best, ["arm"])]
        table = pd.DataFrame(found).sort_values("gain", ascending=False, kind="stable")
        for place, (name, value) in enumerate(zip(by, cell, strict=True)):
            table.insert(place, name, value)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _arm_row(
    name: str, own: pd.DataFrame, plain: pd.DataFrame, ends: tuple[float, float]
) -> dict[str, object]:
    gain = estimate(floats(own, _METRIC) - floats(own, "pass_start"))
    row: dict[str, object] = {
        "arm": name,
        "title": title(name),
        "best": ", ".join(f"{step:g}{_edge(step, ends)}" for step in sorted(unique(own, CHOSEN))),
        "gain": gain.mean,
        "low": gain.low,
        "high": gain.high,
        "n": gain.n,
        "TotalDeg": mean(own, "TotalDeg"),
        "Learned": mean(own, "Learned"),
        "update_norm": mean(own, "update_norm"),
        "update": mean(own, "update"),
    }
    if not len(plain):
        return row
    first, second = (pd.Series(floats(t, _METRIC), t["replicate"].to_numpy()) for t in (own, plain))
    over = paired(first, second)
    return row | {"over_ttrl": over.mean, "over_low": over.low, "over_high": over.high}


def _against_ttrl(best: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """With `update`: the update norm by that of TTRL at the same step in the same replicate."""
    pairs = zip(plain[CHOSEN], plain["replicate"], strict=True)
    norms = dict(zip(pairs, floats(plain, "update_norm"), strict=True))
    own = zip(best[CHOSEN], best["replicate"], strict=True)
    usual = np.array([norms.get(pair, np.nan) or np.nan for pair in own])
    return best.assign(update=floats(best, "update_norm") / usual)


def _edge(step: float, ends: tuple[float, float]) -> str:
    return {ends[0]: "<", ends[1]: ">"}.get(step, "")


def _costs(sweep: Sweep) -> pd.DataFrame:
    """CPU of a visit of every arm, and its ratio to TTRL's."""
    base = replace(sweep.base, replicates=COST_REPLICATES, n_problems=COST_PROBLEMS)
    lines = []
    for name in sweep.arms:
        # Each beside TTRL, whose time is that of the moment on a machine that others use too.
        pair = {plain: of_arm(base, arm(plain)) for plain in dict.fromkeys((BASELINE, name))}
        found = cpu_per_visit(pair, COST_ROUNDS)
        lines.append([name, found[name], found[name] / found[BASELINE]])
    return pd.DataFrame(lines, columns=["arm", "cpu_ns", "cpu"])


def _page(table: pd.DataFrame, by: list[str]) -> Iterator[str]:
    yield "# Label-free rules, each at its own best step\n"
    yield _NOTE.format(replicates=COST_REPLICATES, problems=COST_PROBLEMS)
    heads = [head for name, head in _HEADS.items() if name in table]
    for cell, part in groups(table, by):
        place = ", ".join(f"{name} {value}" for name, value in zip(by, cell, strict=True))
        yield f"\n## {place}\n"
        yield f"| {' | '.join(heads)} |"
        yield f"|{'---|' + '---:|' * (len(heads) - 1)}"
        for _, row in part.iterrows():
            yield f"| {' | '.join(_shown(row, name) for name in _HEADS if name in table)} |"


def _shown(row: pd.Series, name: str) -> str:
    bounds = {"gain": ("low", "high"), "over_ttrl": ("over_low", "over_high")}
    if name in bounds:
        low, high = bounds[name]
        return f"{row[name]:+.1f} [{row[low]:+.1f}, {row[high]:+.1f}]"
    if name in ("title", "best"):
        return str(row[name])
    return f"{row[name]:.2f}" if name in ("update", "cpu") else f"{row[name]:.1f}"
