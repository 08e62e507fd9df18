"""What the paper's TTRL rows say about its guard rows: approximate Bayesian computation.

python docs/tools/readings.py 496       # docs/data/readings-draws.csv, 496 draws of a mechanism

docs/protocol.md has the prior, and what counts as a fit. Every draw has seeds of its own, so the
same command goes on where it was stopped, and gives the same lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from run_rows import DATA

from guard_core import GuardConfig
from lab.base.columns import TextTable, select, where
from lab.base.errors import UserError
from lab.compare.published import PRINTED, Shares
from sim.engine.run import measure
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.calibrate import CELLS, MECHANISMS, POPULATION, ROWS, TableRow, row_config, values
from sim.studies.paper import paper_errors
from sim.world.populations import draw_population
from sim.world.sampling import Population

DRAWS, PAPER, FITS = (
    DATA / f"{name}.csv" for name in ("readings-draws", "paper-cells", "calibration-fits")
)
POLICIES = ("attractor", "attractor", "features")
"""Draw number d has policy d modulo 3; a run of `features` takes longer."""
READINGS = {"text": "text", "one-step": "one-step flip rate", "scripts": "authors' scripts"}
TRIES = 32
"""Populations per mechanism and row."""
NEAR = 0.2
"""Greatest distance of the mean ability from that of the row's named population."""
RUNS = ("ttrl", *READINGS)
SHARED = tuple(dict.fromkeys(p.name for name in POLICIES for p in MECHANISMS[name].parameters))
COLUMNS = (
    *("draw", "policy", *SHARED, "row", "tries", "accepted", *(p.name for p in POPULATION)),
    *(f"{reading}: {cell}" for reading in RUNS for cell in CELLS),
)
"""accepted: how many of the tries fit; what follows is of the first of them, NaN without any."""

_KINDS = {
    "ttrl": "TTRL row (fitted)",
    "guard": "guard row: model",
    "shift": "TTRL row + model's change",
    "matched": "matched effort",
}


def guard(reading: str, row: str) -> GuardConfig:
    """The guard of a reading on a row of the paper."""
    paper, none = GuardConfig.paper(), GuardConfig.off()
    guards = {"ttrl": none, "text": paper, "one-step": paper.set(flip_rate="instant")}
    return guards[reading] if reading in guards else GuardConfig.release_scripts(row)


def drawn(number: int) -> Iterator[dict[str, Any]]:
    """Yield one line per row of the paper for one draw of a mechanism."""
    rng = np.random.default_rng([30, number])
    mechanism = MECHANISMS[POLICIES[number % len(POLICIES)]]
    shared = values(mechanism.parameters, rng.random(len(mechanism.parameters)))
    for place, row in enumerate(ROWS.values()):
        laws = [_law(row, rng) for _ in range(TRIES)]
        config = row_config(mechanism, row, shared | laws[0], TRIES, 10 * number + place)
        problems = [
            draw_population(replace(config, first_replicate=t, replicates=1, **law))
            for t, law in enumerate(laws)
        ]
        found = fits_row(_cells(config, "ttrl", row, problems), row.ttrl, row.n_problems)
        line = {"draw": number, "policy": mechanism.name, **shared, "row": row.name}
        line |= {"tries": TRIES, "accepted": int(found.sum())}
        if found.any():
            first = int(found.argmax())
            one = replace(config, first_replicate=first, replicates=1)
            line |= laws[first]
            for reading in RUNS:
                cells_C = _cells(one, reading, row, [problems[first]])[0]
                line |= {f"{reading}: {c}": v for c, v in zip(CELLS, cells_C, strict=True)}
        yield line


def fits_row(shares: NDArray[np.float64], target: Shares, n_problems: int) -> NDArray[np.bool_]:
    """(...) every of (..., cells) shares in percent lies within two errors of two problem sets."""
    paper_C = np.array(target)
    mean = (shares + paper_C) / 200
    error = 100 * np.sqrt(2 * mean * (1 - mean) / n_problems)
    return np.asarray((np.abs(shares - paper_C) <= 2 * error + PRINTED).all(axis=-1))


def _law(row: TableRow, rng: np.random.Generator) -> dict[str, float]:
    law = values(POPULATION, rng.random(len(POPULATION)))
    mean = NAMED[row.name].mean + NEAR * (2 * law["ability_mean"] - 1)
    return {**law, "ability_mean": min(max(mean, 0.001), 0.999)}


def _cells(
    config: SimConfig, reading: str, row: TableRow, problems: list[Population]
) -> NDArray[np.float64]:
    """(replicates, cells) percent of the problems; NaN where the logits stop being finite."""
    names = ("p0_RNA", "truth_RN", "attractor_RN")
    population = Population(*(np.concatenate([getattr(p, n) for p in problems]) for n in names))
    own = replace(config, guard=guard(reading, row.name))
    try:
        return measure(own, population=population)[list(CELLS)].to_numpy(np.float64)
    except UserError:
        return np.full((len(problems), len(CELLS)), np.nan)


def draw(count: int) -> None:
    """Add those of the first draws that the file lacks."""
    known = set(pd.read_csv(DRAWS)["draw"]) if DRAWS.is_file() else set[int]()
    for number in sorted({*range(count)} - known):
        lines = pd.DataFrame(list(drawn(number))).reindex(columns=list(COLUMNS))
        new = not DRAWS.is_file()
        lines.to_csv(DRAWS, mode="a", header=new, index=False, float_format="%.5g")


def weighted(row: str) -> pd.DataFrame:
    """The mechanisms that fit a row, with weights that sum to 1."""
    own = where(pd.read_csv(DRAWS), row=row)
    own = select(own, own["accepted"] > 0)
    share = own["accepted"] / own["tries"]
    return own.assign(weight=share / share.sum())


def predictions() -> TextTable:
    """Degraded under each reading given the TTRL row, and how often the guard row fits."""
    lines = []
    for row in ROWS.values():
        own = weighted(row.name)
        w = own["weight"].to_numpy(np.float64)
        line = [row.name, f"{len(w)} ({1 / (w @ w):.0f})"]
        line += [_quantiles(own["ttrl: Degraded"], w), f"{row.guard[0]:.1f}"]
        for reading in READINGS:
            shares = own[[f"{reading}: {cell}" for cell in CELLS]].to_numpy(np.float64)
            fit = 100 * float(w @ fits_row(shares, row.guard, row.n_problems))
            line.append(f"{_quantiles(shares[:, 0], w)}; {fit:.0f} %")
        lines.append(line)
    head = ["row", "mechanisms (effective)", "TTRL", "paper's guard"]
    return TextTable([*head, *READINGS.values()], lines)


def _quantiles(values: pd.Series | NDArray[np.float64], w: NDArray[np.float64]) -> str:
    numbers = np.asarray(values, np.float64)
    order = np.argsort(numbers)
    place = np.searchsorted(np.cumsum(w[order]), (0.5, 0.05, 0.95))
    middle, low, high = numbers[order][np.minimum(place, len(w) - 1)]
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def errors() -> TextTable:
    """Errors over all cells that the paper prints, of the arms whose fates it prints."""
    found = paper_errors(pd.read_csv(PAPER, comment="#"))
    head = {"fates": "fates", "change": "change from TTRL", "pass_at_1": "pass@1"}
    own = found[found["n_fates"] > 0].set_index("arm")[[*head]]
    lines = [[f"`{arm}`", *(f"{x:.2f}" for x in row)] for arm, *row in own.itertuples()]
    return TextTable(["arm", *head.values()], lines)


def cells(row: str) -> TextTable:
    """The printed cells of a row, simulated and printed, by arm, where fates are printed."""
    own = where(pd.read_csv(PAPER, comment="#"), row=row)
    own = own.groupby("kind", sort=False).filter(lambda part: len(part) > 1)
    heads = list(dict.fromkeys(own["cell"]))
    lines = []
    for name, part in own.groupby("kind", sort=False):
        shown = {c.cell: f"{c.predicted:.1f} / {c.published:.1f}" for c in part.itertuples()}
        lines.append([f"`{name}`", *(shown.get(head, "") for head in heads)])
    return TextTable(["arm; simulated / paper", *heads], lines)


def fits() -> TextTable:
    """Mean error of every mechanism's fits, by kind; label accuracy is a share of votes."""
    rows = where(pd.read_csv(FITS), reading="share")
    lines = []
    for mechanism, part in rows.groupby("mechanism"):
        lines.append([str(mechanism)])
        for own in (where(part, kind=kind) for kind in _KINDS):
            low, high = own["low"].min(), own["high"].max()
            lines[-1].append(f"{own['error'].mean():.2f} [{low:.2f}, {high:.2f}]")
    return TextTable(["mechanism", *_KINDS.values()], lines)


KINDS = {make.__name__: make for make in (cells, errors, fits, predictions)}
"""Tables of the pages, by name."""


if __name__ == "__main__":
    draw(int(sys.argv[1]))
