"""Tables of what the paper's TTRL rows say about its guard rows, for the docs.

From the files of docs/data that `readings.py` and `guard-sim compare --preset paper` make.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.base.columns import TextTable, select, where
from lab.compare.published import fits_row
from sim.studies.calibrate import CELLS, ROWS
from sim.studies.paper import paper_errors

DOCS = Path(__file__).parents[1]
DRAWS, PAPER = DOCS / "data" / "readings-draws.csv", DOCS / "data" / "paper-cells.csv"
FITS = DOCS / "data" / "calibration-fits.csv"
READINGS = {"text": "text", "one-step": "one-step flip rate", "scripts": "authors' scripts"}
_KINDS = {
    "ttrl": "TTRL row (fitted)",
    "guard": "guard row: model",
    "shift": "TTRL row + model's change",
    "matched": "matched effort",
}
HARDEST = "llama-math500"
"""The row in which the readings part."""


def readings(*words: str) -> TextTable:
    """The table of one of `KINDS`, which takes the other words."""
    return KINDS[words[0]](*words[1:])


def weighted(row: str, together: bool) -> pd.DataFrame:
    """The mechanisms that fit a row, or all six rows together, with weights that sum to 1."""
    draws = pd.read_csv(DRAWS)
    share = draws.assign(weight=draws["accepted"] / draws["tries"])
    if together:
        each = share.pivot(index="draw", columns="row", values="weight").prod(axis=1)
        share["weight"] = share["draw"].map(each)
    own = where(share, row=row)
    own = select(own, (own["weight"] > 0).to_numpy())
    return own.assign(weight=own["weight"] / own["weight"].sum())


def predictions() -> TextTable:
    """Degraded under each reading given the TTRL row, and how often the guard row fits."""
    lines = []
    for row in ROWS.values():
        own = weighted(row.name, False)
        w = own["weight"].to_numpy(np.float64)
        line = [row.name]
        line.append(f"{len(w)} ({1 / (w @ w) if len(w) else 0:.0f})")
        line += [_quantiles(own["ttrl: Degraded"], w), f"{row.guard[0]:.1f}"]
        for reading in READINGS:
            shares = own[[f"{reading}: {cell}" for cell in CELLS]].to_numpy(np.float64)
            fit = 100 * float(w @ fits_row(shares, row.guard, row.n_problems))
            line.append(f"{_quantiles(shares[:, 0], w)}; {fit:.0f} %" if len(w) else "")
        lines.append(line)
    head = ["row", "mechanisms (effective)", "TTRL", "paper's guard"]
    return TextTable([*head, *READINGS.values()], lines)


def _quantiles(values: pd.Series | NDArray[np.float64], w: NDArray[np.float64]) -> str:
    if not len(w):
        return ""
    numbers = np.asarray(values, np.float64)
    order = np.argsort(numbers)
    place = np.searchsorted(np.cumsum(w[order]), (0.5, 0.05, 0.95))
    middle, low, high = numbers[order][np.minimum(place, len(w) - 1)]
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def errors() -> TextTable:
    """Errors of every arm over all cells that the paper prints."""
    lines = []
    for e in paper_errors(pd.read_csv(PAPER, comment="#")).itertuples():
        shown = [_points(e.fates), _points(e.change), str(e.n_fates)]
        lines.append([f"`{e.arm}`", *shown, _points(e.pass_at_1), str(e.n_pass)])
    head = ["arm", "fates", "change from TTRL", "cells", "pass@1", "cells"]
    return TextTable(head, lines)


def cells(row: str) -> TextTable:
    """The printed cells of a row, simulated and printed, by arm."""
    own = where(pd.read_csv(PAPER, comment="#"), row=row)
    heads = list(dict.fromkeys(own["cell"]))
    lines = []
    for name, part in own.groupby("kind", sort=False):
        shown = {
            c.cell: f"{c.predicted:.1f} ± {c.sd:.1f} / {c.published:.1f}" for c in part.itertuples()
        }
        lines.append([f"`{name}`", *(shown.get(head, "") for head in heads)])
    return TextTable(["arm; simulated / paper", *heads], lines)


def fits() -> TextTable:
    """Mean error of the fits of every mechanism and reading of label accuracy, by kind."""
    rows = pd.read_csv(FITS)
    lines = []
    for (mechanism, reading), part in rows.groupby(["mechanism", "reading"]):
        shown = [where(part, kind=kind) for kind in _KINDS]
        means = [
            f"{own['error'].mean():.2f} [{own['low'].min():.2f}, {own['high'].max():.2f}]"
            for own in shown
        ]
        lines.append([str(mechanism), str(reading), *means])
    return TextTable(["mechanism", "label accuracy", *_KINDS.values()], lines)


def _points(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


KINDS: dict[str, Callable[..., TextTable]] = {
    "cells": cells,
    "errors": errors,
    "fits": fits,
    "predictions": predictions,
}
