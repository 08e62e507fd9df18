"""The fit: random search over the mechanism, then Nelder-Mead on one block of numbers at a time.

Given the mechanism the rows do not depend on each other, so the numbers of a row's population
are fitted on that row alone and those of the mechanism on all rows. All evaluations of a fit have
the same seed. That takes most of the noise out of differences, not all: the Beta sampler takes
another number of draws at other parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, arm
from lab.base.columns import floats
from lab.base.errors import UserError
from sim.engine.run import measure
from sim.settings.config import SimConfig
from sim.studies.calibrate.mechanisms import (
    Mechanism,
    Unit,
    population_start,
    row_config,
    values,
)
from sim.studies.calibrate.published import CELLS, Row, Shares

Reading = Literal["share", "majority"]
READINGS: tuple[Reading, ...] = get_args(Reading)
"""Two readings of the paper's label accuracy: the share of the votes that is correct, or 1 where
the majority is correct and 0 elsewhere, so that ILA and FLA are shares of visits."""
_COLUMN = {"share": "label_accuracy", "majority": "label_correct"}
FAILED = 100.0
"""Error of a run that exploded: beyond what shares of 100 can give as a mean."""
_EDGE = 0.15
"""Edge of the first simplex, in units of a parameter's range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on the computation of a fit."""

    candidates: int = 24
    """Mechanisms of the random search, the start among them."""
    rounds: int = 2
    """Number of times that populations and mechanism are fitted in turn."""
    population: int = 20
    """Runs per row and round for a population."""
    mechanism: int = 30
    """Runs of all rows per round for the mechanism."""
    problems: int = 1500
    """Problems per row and run over the replicates, at least; 2 to 16 replicates."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("candidates", "rounds", "population", "mechanism", "problems"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")

    def replicates(self, row: Row) -> int:
        """Of a run of the row."""
        return min(16, max(2, -(-self.problems // row.n_problems)))


QUICK = Budget(candidates=4, rounds=1, population=8, mechanism=8, problems=500)


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit, frozen."""

    mechanism: str
    reading: Reading
    shared: dict[str, Any]
    """Numbers of the mechanism."""
    own: dict[str, dict[str, Any]]
    """Numbers of the population by row."""
    loss: float
    """Mean error over the fitted cells in points, on the seeds of the fit."""
    runs: int
    """Runs of one row that it took."""


def fit(
    mechanism: Mechanism,
    rows: Sequence[Row],
    reading: Reading,
    seed: int,
    budget: Budget | None = None,
) -> Fit:
    """Fit the TTRL rows.

    Args:
        rows: of the paper, or like them; their guard rows are not used.
        reading: of label accuracy.
        seed: of the runs and of the random search.

    Raises:
        UserError: there are no rows, or no candidate could be run.
    """
    if not rows:
        raise UserError("rows: give at least one")
    return _Search(mechanism, tuple(rows), reading, seed, budget or Budget()).run()


class _Search:
    def __init__(
        self,
        mechanism: Mechanism,
        rows: tuple[Row, ...],
        reading: Reading,
        seed: int,
        budget: Budget,
    ) -> None:
        self.mechanism, self.rows = mechanism, rows
        self.reading: Reading = reading
        self.seed, self.budget = seed, budget
        self.own = {row.name: population_start(row, mechanism.population) for row in rows}
        self.shared = mechanism.start
        self.runs = 0

    def run(self) -> Fit:
        budget = self.budget
        candidates = self._candidates(np.random.default_rng([self.seed, 1]))
        losses = [self.total(c) for c in candidates]
        if min(losses) >= FAILED:
            raise UserError(f"mechanism {self.mechanism.name}: every candidate's logits exploded")
        self.shared = candidates[int(np.argmin(losses))]
        for _ in range(budget.rounds):
            for row in self.rows:
                start = self.own[row.name]
                self.own[row.name] = _descend(
                    lambda u, row=row: self.loss(row, self.shared, u), start, budget.population
                )
            self.shared = _descend(self.total, self.shared, budget.mechanism)
        return Fit(
            self.mechanism.name,
            self.reading,
            self.mechanism.values(self.shared),
            {name: values(self.mechanism.population, unit) for name, unit in self.own.items()},
            self.total(self.shared),
            self.runs,
        )

    def total(self, shared: Unit) -> float:
        """Mean error of all rows."""
        return float(np.mean([self.loss(row, shared, self.own[row.name]) for row in self.rows]))

    def loss(self, row: Row, shared: Unit, own: Unit) -> float:
        """Error of one row."""
        config = row_config(
            self.mechanism,
            row,
            self.mechanism.values(shared),
            values(self.mechanism.population, own),
            self.budget.replicates(row),
            self.seed,
        )
        self.runs += 1
        try:
            table = measure_reading(with_arm(config, arm(BASELINE)), self.reading)
        except UserError:
            # A step at which the logits explode is a bad candidate, not an end of the search.
            return FAILED
        return mean_error(table, row.ttrl)

    def _candidates(self, rng: np.random.Generator) -> list[Unit]:
        """Return the start, points near it, and as many anywhere in the cube."""
        start = self.mechanism.start
        count = self.budget.candidates - 1
        near = start + _EDGE * rng.normal(size=(count, len(start)))
        anywhere = rng.random((count, len(start)))
        drawn = np.where(np.arange(count)[:, None] % 2 == 0, near, anywhere)
        return [start, *np.clip(drawn, 0, 1)]


def _descend(loss: Callable[[Unit], float], start: Unit, runs: int) -> Unit:
    """Return the best point of a Nelder-Mead search within the unit cube."""
    # This import takes as long as all others together, and every command imports this module.
    from scipy.optimize import minimize

    simplex = np.tile(start, (len(start) + 1, 1))
    for i, value in enumerate(start):
        # Into the cube: a vertex outside would be clipped onto the start.
        simplex[i + 1, i] = value + (_EDGE if value < 0.5 else -_EDGE)
    visited: list[tuple[float, Unit]] = []

    def recorded(unit: Unit) -> float:
        visited.append((loss(unit), unit.copy()))
        return visited[-1][0]

    minimize(
        recorded,
        start,
        method="Nelder-Mead",
        bounds=[(0.0, 1.0)] * len(start),
        options={"maxfev": runs, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-3},
    )
    return min(visited, key=lambda point: point[0])[1]


def measure_reading(config: SimConfig, reading: Reading) -> pd.DataFrame:
    """Return the numbers of a run, see `sim.engine.run.measure`, with the fates of one reading.

    Raises:
        UserError: the logits stopped being finite.
    """
    return measure(config, _COLUMN[reading])


def cells_of(table: pd.DataFrame) -> NDArray[np.float64]:
    """(rows, cells) percent of the problems, of a table with a column per cell."""
    return np.stack([floats(table, cell) for cell in CELLS], axis=1)


def mean_error(table: pd.DataFrame, target: Shares) -> float:
    """Mean over the cells of |mean over the replicates - target|, in points."""
    return float(np.abs(cells_of(table).mean(axis=0) - np.array(target)).mean())


def readings_named(names: tuple[str, ...]) -> tuple[Reading, ...]:
    """The readings of these names, all if none is given.

    Raises:
        UserError: a name is unknown.
    """
    for name in names:
        if name not in READINGS:
            raise UserError(f"readings {name!r}: unknown, use one of {', '.join(READINGS)}")
    return tuple(r for r in READINGS if not names or r in names)
