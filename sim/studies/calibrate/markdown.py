"""The tables of a calibration, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from lab.arms import BASELINE, GUARD, MATCHED
from lab.columns import finite_mean, floats, groups, unique, where
from lab.stats.words import mean_sd
from sim.studies.calibrate.error import COPY, KINDS, SHIFT
from sim.studies.calibrate.mechanisms import MECHANISMS
from sim.studies.calibrate.published import CELLS, Row

_HEADS = {
    BASELINE: "TTRL row (fitted)",
    GUARD: "guard row: model",
    SHIFT: "TTRL row + model's change",
    MATCHED: "matched effort",
    COPY: "copy of TTRL row",
}
_KEY = ("mechanism", "reading")


def report(
    summaries: pd.DataFrame,
    cells: pd.DataFrame,
    parameters: pd.DataFrame,
    predictions: pd.DataFrame,
    rows: Sequence[Row],
) -> str:
    """Return all tables of `sim.studies.calibrate.folder` as Markdown."""
    sections = [
        ("Mean error, points per cell", error_table(summaries, rows)),
        ("Fit by fit, points per cell", fit_table(summaries, parameters)),
        ("Error of a single run, points per cell", one_run_table(summaries)),
        ("Mean error of the guard row by row, points per cell", row_table(cells, rows)),
        ("Learned, percent, TTRL → guard", two_arms(cells, rows, ("Learned",))),
        ("TotalDeg, percent, TTRL → guard", two_arms(cells, rows, CELLS[:2])),
        ("Cells, percent", cell_table(cells, rows)),
        ("pass@1, percent, not fitted", pass_table(predictions, rows)),
        ("Fitted numbers", parameter_table(parameters)),
    ]
    return "\n".join(f"## {title}\n\n{table}" for title, table in sections)


def error_table(summaries: pd.DataFrame, rows: Sequence[Row]) -> str:
    """Mean error of every kind: the mean of the fits, and the widest interval of any fit."""
    lines = []
    for (mechanism, reading), part in groups(summaries, _KEY):
        fitted = MECHANISMS[mechanism]
        free = len(fitted.parameters) + len(fitted.population) * len(rows)
        shown = [_interval(where(part, kind=kind), kind) for kind in KINDS]
        lines.append([mechanism, reading, f"{free} / {len(CELLS) * len(rows)}", *shown])
    return _table([*_KEY, "fitted / cells", *_HEADS.values()], lines)


def fit_table(summaries: pd.DataFrame, parameters: pd.DataFrame) -> str:
    """Error of every fit: on its own seeds, in units of the loss, and on new ones, in points."""
    lines = []
    for (mechanism, reading), part in groups(summaries, _KEY):
        for fit in unique(part, "fit"):
            own = where(parameters, mechanism=mechanism, reading=reading, fit=fit)
            new = [where(part, fit=fit, kind=kind) for kind in KINDS if kind != COPY]
            shown = [f"{finite_mean(own, 'loss'):.2f}", *(_interval(n, GUARD) for n in new)]
            lines.append([mechanism, reading, fit, *shown])
    heads = [_HEADS[kind] for kind in KINDS if kind != COPY]
    return _table([*_KEY, "fit", "in the fit", *heads], lines)


def one_run_table(summaries: pd.DataFrame) -> str:
    """Error of a single run, as mean and standard deviation over the runs."""
    lines = []
    for (mechanism, reading), part in groups(summaries, _KEY):
        own = [where(part, kind=kind) for kind in KINDS if kind != COPY]
        shown = [mean_sd(finite_mean(p, "one_run"), finite_mean(p, "one_run_sd")) for p in own]
        lines.append([mechanism, reading, *shown])
    return _table([*_KEY, *(_HEADS[kind] for kind in KINDS if kind != COPY)], lines)


def row_table(cells: pd.DataFrame, rows: Sequence[Row]) -> str:
    """Error of the guard's row: of the model / of copying, the lines' own fits averaged."""
    lines = []
    for (mechanism, reading), part in groups(cells, _KEY):
        shown = []
        for row in rows:
            kinds = [where(part, row=row.name, kind=kind) for kind in (GUARD, COPY)]
            shown.append(" / ".join(f"{finite_mean(k, 'error'):.1f}" for k in kinds))
        lines.append([mechanism, reading, *shown])
    return _table([*_KEY, *(row.name for row in rows)], lines)


def two_arms(cells: pd.DataFrame, rows: Sequence[Row], names: Sequence[str]) -> str:
    """The sum of some cells under TTRL and under the guard, the paper's first."""
    places = [CELLS.index(name) for name in names]
    paper = [[sum(shares[p] for p in places) for shares in (r.ttrl, r.guard)] for r in rows]
    lines = [["paper", "", *(f"{a:.1f} → {b:.1f}" for a, b in paper)]]
    for (mechanism, reading), part in groups(cells, _KEY):
        shown = []
        for row in rows:
            own = [where(part, row=row.name, kind=kind) for kind in (BASELINE, GUARD)]
            sums = [sum(finite_mean(where(o, cell=n), "predicted") for n in names) for o in own]
            shown.append(f"{sums[0]:.1f} → {sums[1]:.1f}")
        lines.append([mechanism, reading, *shown])
    return _table([*_KEY, *(row.name for row in rows)], lines)


def cell_table(cells: pd.DataFrame, rows: Sequence[Row]) -> str:
    """Every cell: the paper's number, then mean and standard deviation of the runs, all fits."""
    lines = []
    for row in rows:
        for kind, shares in ((BASELINE, row.ttrl), (GUARD, row.guard)):
            lines.append([row.title, kind, "paper", "", *(f"{s:.1f}" for s in shares)])
            for (mechanism, reading), part in groups(where(cells, row=row.name, kind=kind), _KEY):
                own = [where(part, cell=cell) for cell in CELLS]
                shown = [mean_sd(finite_mean(o, "predicted"), finite_mean(o, "sd")) for o in own]
                lines.append(["", "", mechanism, reading, *shown])
    return _table(["row", "arm", *_KEY, *CELLS], lines)


def pass_table(predictions: pd.DataFrame, rows: Sequence[Row]) -> str:
    """pass@1 before training, after TTRL and after the guard."""
    lines = []
    for row in rows:
        lines.append([row.title, "paper", "", *(f"{p:.1f}" for p in row.pass_at_1)])
        for (mechanism, reading), part in groups(where(predictions, row=row.name), _KEY):
            ends = [finite_mean(where(part, arm=name), "pass_final") for name in (BASELINE, GUARD)]
            shown = [finite_mean(part, "pass_start"), *ends]
            lines.append(["", mechanism, reading, *(f"{p:.1f}" for p in shown)])
    return _table(["row", *_KEY, "before", "TTRL", "guard"], lines)


def parameter_table(parameters: pd.DataFrame) -> str:
    """Every fitted number; a row's are mean, concentration and, if any, share of the middle."""
    lines = []
    for (mechanism, reading), part in groups(parameters, _KEY):
        for fit in unique(part, "fit"):
            own = where(part, fit=fit)
            numbers = []
            for row in unique(own, "row"):
                fitted = where(own, row=row)
                pairs = zip(fitted["name"], floats(fitted, "value"), strict=True)
                shown = [f"{v:.3g}" if row else f"{name} {v:.3g}" for name, v in pairs]
                numbers.append(f"{row} ({', '.join(shown)})" if row else ", ".join(shown))
            lines.append([mechanism, reading, fit, f"{finite_mean(own, 'loss'):.2f}", *numbers])
    rows = ["rows"] * (max(map(len, lines)) - 5)
    return _table([*_KEY, "fit", "error in the fit", "mechanism", *rows], lines)


def _interval(part: pd.DataFrame, kind: str) -> str:
    error = f"{finite_mean(part, 'error'):.2f}"
    if kind == COPY:
        return error
    return f"{error} [{floats(part, 'low').min():.2f}, {floats(part, 'high').max():.2f}]"


def _table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    written = [heads, ["---"] * len(heads), *lines]
    return "".join("| " + " | ".join(str(value) for value in line) + " |\n" for line in written)
