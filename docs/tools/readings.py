"""What the paper's TTRL rows say about its guard rows: approximate Bayesian computation.

python docs/tools/readings.py 496       # docs/data/readings-draws.csv, 496 draws of a mechanism

docs/protocol.md has the prior, and what counts as a fit. Every draw has seeds of its own, so the
same command goes on where it was stopped, and gives the same lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.compare.published import fits_row
from sim.engine.run import measure
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.calibrate import CELLS, MECHANISMS, POPULATION, ROWS, TableRow, row_config, values
from sim.world.populations import Population, draw_population

DRAWS = Path(__file__).parents[1] / "data" / "readings-draws.csv"
POLICIES = ("attractor", "attractor", "features")
"""Draw number d has policy d modulo 3; a run of `features` takes longer."""
READINGS = ("ttrl", "text", "one-step", "scripts")
TRIES = 32
"""Populations per mechanism and row."""
NEAR = 0.2
"""Greatest distance of the mean ability from that of the row's named population."""
SHARED = tuple(dict.fromkeys(p.name for name in POLICIES for p in MECHANISMS[name].parameters))
COLUMNS = (
    *("draw", "policy", *SHARED, "row", "tries", "accepted", *(p.name for p in POPULATION)),
    *(f"{reading}: {cell}" for reading in READINGS for cell in CELLS),
)
"""accepted: how many of the tries fit; what follows is of the first of them, NaN without any."""


def guard(reading: str, row: str) -> GuardConfig:
    """The guard of a reading on a row of the paper."""
    if reading == "scripts":
        return GuardConfig.release_scripts(row)
    if reading == "one-step":
        return replace(GuardConfig.paper(), flip_rate="instant")
    return GuardConfig.paper() if reading == "text" else GuardConfig.off()


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
            for reading in READINGS:
                cells_C = _cells(one, reading, row, [problems[first]])[0]
                line |= {f"{reading}: {c}": v for c, v in zip(CELLS, cells_C, strict=True)}
        yield line


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
    known = pd.read_csv(DRAWS)["draw"].unique() if DRAWS.is_file() else ()
    for number in range(count):
        if number not in known:
            lines = pd.DataFrame(list(drawn(number))).reindex(columns=list(COLUMNS))
            new = not DRAWS.is_file()
            lines.to_csv(DRAWS, mode="a", header=new, index=False, float_format="%.5g")


if __name__ == "__main__":
    draw(int(sys.argv[1]))
