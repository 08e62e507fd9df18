"""Tables and the figure of what the paper's TTRL rows say about its guard rows.

python docs/tools/readings_page.py      # docs/readings.svg; needs the extra png

From the files of docs/data that `readings.py` and `guard-sim compare --preset paper` make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from drawing import svg
from numpy.typing import NDArray
from scipy.stats import rankdata

from lab.base.columns import select, where
from lab.base.text_table import TextTable
from lab.compare.published import fits_row
from lab.figures.style import BLUE, ORANGE, VERMILLION, multiples, place_of, styled
from sim.studies.calibrate import CELLS, ROWS
from sim.studies.paper import paper_errors

DOCS = Path(__file__).parents[1]
DRAWS, PAPER = DOCS / "data" / "readings-draws.csv", DOCS / "data" / "paper-cells.csv"
FITS = DOCS / "data" / "calibration-fits.csv"
FIGURE = DOCS / "readings.svg"
READINGS = {"text": "text", "one-step": "one-step flip rate", "scripts": "authors' scripts"}
_KINDS = {
    "ttrl": "TTRL row (fitted)",
    "guard": "guard row: model",
    "shift": "TTRL row + model's change",
    "matched": "matched effort",
}
HARDEST = "llama-math500"
"""The row in which the readings part."""
_NUMBERS = {
    "attractor": ("step", "kappa_att", "kappa_corr", "neg_transfer"),
    "features": ("step", "feature_dim"),
}


def readings(*words: str) -> TextTable:
    """The table of one of `KINDS`, which takes the other words."""
    return KINDS[words[0]](*words[1:])


def weighted(row: str, together: bool, policy: str = "") -> pd.DataFrame:
    """The accepted mechanisms of a row with their weights, which sum to 1.

    Args:
        row: of the paper.
        together: all six rows must fit, not this one alone.
        policy: of these draws alone; of all if empty.
    """
    draws = pd.read_csv(DRAWS)
    draws = where(draws, policy=policy) if policy else draws
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
    for name, together, policy in _conditions():
        own = weighted(name, together, policy)
        row, w = ROWS[name], own["weight"].to_numpy(np.float64)
        given = "all six rows" if together else "this row"
        line = [name, given, policy or "both", f"{len(w)} ({_effective(w):.0f})"]
        if not len(w):
            lines.append([*line, "", f"{row.guard[0]:.1f}", *[""] * len(READINGS)])
            continue
        line += [_quantiles(own["ttrl: Degraded"], w), f"{row.guard[0]:.1f}"]
        for reading in READINGS:
            shares = own[[f"{reading}: {cell}" for cell in CELLS]].to_numpy(np.float64)
            fit = 100 * float(w @ fits_row(shares, row.guard, row.n_problems))
            line.append(f"{_quantiles(shares[:, 0], w)}; {fit:.0f} %")
        lines.append(line)
    head = ["row", "given", "policy", "mechanisms (effective)", "TTRL", "paper's guard"]
    return TextTable([*head, *READINGS.values()], lines)


def _conditions() -> Iterator[tuple[str, bool, str]]:
    for policy in _NUMBERS:
        yield HARDEST, False, policy
    for together in (False, True):
        yield from ((name, together, "") for name in ROWS)


def parameters() -> TextTable:
    """Weighted rank correlation of predicted Degraded with every number, given one TTRL row."""
    lines = []
    for policy, names in _NUMBERS.items():
        own = weighted(HARDEST, False, policy)
        for name in (*names, "ability_concentration"):
            found = [_rank_correlation(own, name, f"{r}: Degraded") for r in READINGS]
            lines.append([policy, f"`{name}`", str(len(own)), *found])
    return TextTable(["policy", "number", "mechanisms", *READINGS.values()], lines)


def _rank_correlation(own: pd.DataFrame, first: str, second: str) -> str:
    if len(own) < 10:
        return ""
    ranks = np.stack([rankdata(own[name]) for name in (first, second)])
    (a, b), (_, c) = np.cov(ranks, aweights=own["weight"])
    return f"{b / np.sqrt(a * c):+.2f}" if a * c > 0 else ""


def _effective(w: NDArray[np.float64]) -> float:
    return float(1 / (w @ w)) if len(w) else 0.0


def _quantiles(values: pd.Series | NDArray[np.float64], w: NDArray[np.float64]) -> str:
    numbers = np.asarray(values, np.float64)
    order = np.argsort(numbers)
    place = np.searchsorted(np.cumsum(w[order]), (0.5, 0.05, 0.95))
    middle, low, high = numbers[order][np.minimum(place, len(w) - 1)]
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def errors() -> TextTable:
    """Errors of every arm over all cells that the paper prints."""
    found = paper_errors(pd.read_csv(PAPER, comment="#"))
    lines = [
        [
            f"`{e.arm}`",
            *map(_points, (e.fates, e.change)),
            e.n_fates,
            _points(e.pass_at_1),
            e.n_pass,
        ]
        for e in found.itertuples()
    ]
    head = ["arm", "fates", "change from TTRL", "cells", "pass@1", "cells"]
    return TextTable(head, [[str(value) for value in line] for line in lines])


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
    "parameters": parameters,
    "predictions": predictions,
}


def figure() -> go.Figure:
    """Predicted Degraded of the hardest row, a point per mechanism, its area the weight."""
    heads = ("Given this TTRL row", "Given all six TTRL rows")
    drawn = multiples(heads, shared_yaxes=True)
    rng = np.random.default_rng(0)
    for panel, together in enumerate((False, True)):
        own, place = weighted(HARDEST, together), place_of(panel, 2)
        for policy, colour in (("attractor", BLUE), ("features", ORANGE)):
            part = where(own, policy=policy)
            for x, reading in enumerate(READINGS):
                drawn.add_scatter(
                    x=x + rng.uniform(-0.25, 0.25, len(part)),
                    y=part[f"{reading}: Degraded"],
                    mode="markers",
                    marker={
                        "size": 3 + 30 * np.sqrt(part["weight"] / own["weight"].max()) / 3,
                        "color": colour,
                        "opacity": 0.55,
                    },
                    name=policy,
                    showlegend=panel == x == 0,
                    **place,
                )
        target = {"color": VERMILLION, "dash": "dash"}
        drawn.add_hline(y=ROWS[HARDEST].guard[0], line=target, row=1, col=panel + 1)
    drawn.update_xaxes(
        tickvals=[0, 1, 2], ticktext=["text", "one-step", "scripts"], range=[-0.5, 2.5]
    )
    drawn.update_yaxes(title_text="Degraded under the guard, %", range=[0, 65], col=1)
    return styled(drawn, 360, legend={"y": 1.16}, margin={"t": 70, "l": 60, "r": 20, "b": 40})


if __name__ == "__main__":
    drawn = figure().update_layout(paper_bgcolor="#ffffff")
    FIGURE.write_text(svg(drawn, "readings", 760) + "\n", encoding="utf-8")
    print(FIGURE)
