"""Fit populations and a mechanism to the paper's TTRL rows, freeze them, predict its guard rows.

The fit is a random search over the mechanism, then Nelder-Mead on one block of numbers at a time:
given the mechanism the rows do not depend on each other, so the numbers of a row's population are
fitted on that row alone and those of the mechanism on all rows. All evaluations of a fit have the
same seed, which takes most of the noise out of differences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from guard_core.config import Count, Interval, check_fields
from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, GUARD, MATCHED, arm
from lab.base.columns import TextTable, finite_mean, floats, groups, where
from lab.base.errors import UserError
from lab.base.files import check_new_folder, whole_folder
from lab.base.stats import percentile_interval, resample_counts
from lab.compare.published import CELLS, FATES, N_PROBLEMS, Shares, setting_of
from lab.progress import Bar
from lab.study import Control
from sim.engine.run import measure
from sim.settings.config import SimConfig
from sim.settings.machine_code import compilation_shown
from sim.settings.populations import NAMED
from sim.studies.jobs import find


class TableRow(NamedTuple):
    """One model on one data set, under TTRL and under TTRL-Guard."""

    name: str
    """Also of `NAMED`, where the fit starts."""
    n_problems: int
    epochs: int
    ttrl: Shares
    guard: Shares


_NAMES = "llama-math500 llama-amc llama-aime24 qwen-math500 qwen-amc qwen-aime25"
ROWS: dict[str, TableRow] = {
    name: TableRow(
        name, N_PROBLEMS[data], NAMED[name].epochs, *(FATES[at, data, m] for m in (BASELINE, GUARD))
    )
    for name in _NAMES.split()
    for at, data in [setting_of(name) or ("", "")]
}

Unit = NDArray[np.float64]
"""(parameters,) in [0, 1], what the optimizer moves."""


class Parameter(NamedTuple):
    """A field of `SimConfig` that is fitted; its bounds and where the fit starts."""

    name: str
    low: float
    high: float
    start: float
    scale: Literal["linear", "log"] = "log"
    whole: bool = False

    def value(self, unit: float) -> float:
        """The value of the field at a point of [0, 1]."""
        if self.scale == "linear":
            return self.low + unit * (self.high - self.low)
        value = self.low * (self.high / self.low) ** unit
        return round(value) if self.whole else value

    def unit(self, value: float) -> float:
        """The point of [0, 1] at a value of the field, clipped to the bounds."""
        value = min(max(value, self.low), self.high)
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


def values(parameters: tuple[Parameter, ...], unit: Unit) -> dict[str, Any]:
    """Values of the fields by name, see `Parameter.value`."""
    return {p.name: p.value(float(u)) for p, u in zip(parameters, unit, strict=True)}


POPULATION = (
    Parameter("ability_mean", 0.001, 0.999, 0.5, "linear"),
    Parameter("ability_concentration", 0.05, 10.0, 0.3),
)
"""Fitted for every row on its own."""


class Mechanism(NamedTuple):
    """A policy and the parameters that all rows share."""

    name: str
    policy: Literal["independent", "attractor", "features"]
    parameters: tuple[Parameter, ...]


_STEP = Parameter("step", 0.01, 0.5, 0.06)
_ATTRACTOR = (
    _STEP,
    Parameter("kappa_att", 0.02, 1.0, 0.25),
    Parameter("kappa_corr", 0.0005, 0.2, 0.012),
    Parameter("neg_transfer", 0.0, 1.0, 0.3, "linear"),
)
_SPREAD = (
    *(p._replace(start=0.045) if p.name == "kappa_corr" else p for p in _ATTRACTOR),
    Parameter("corr_load_sd", 0.1, 5.0, 3.0, "linear"),
)
_FEATURES = (_STEP, Parameter("feature_dim", 4, 256, 64, whole=True))

MECHANISMS: dict[str, Mechanism] = {
    "independent": Mechanism("independent", "independent", (_STEP,)),
    "attractor": Mechanism("attractor", "attractor", _ATTRACTOR),
    "spread": Mechanism("spread", "attractor", _SPREAD),
    "features": Mechanism("features", "features", _FEATURES),
}
"""`spread` is the attractor with a fitted spread of the loadings on the correct direction."""


def row_config(
    mechanism: Mechanism, row: TableRow, numbers: dict[str, Any], replicates: int, seed: int
) -> SimConfig:
    """The settings of a row under the paper's guard; `with_arm` makes them an arm's."""
    settings = numbers | {"n_problems": row.n_problems, "epochs": row.epochs, "seed": seed}
    return SimConfig(policy=mechanism.policy, population="beta", replicates=replicates, **settings)


READINGS = {"share": "label_accuracy", "majority": "label_correct"}
"""Readings of the paper's label accuracy, and their columns: the share of the votes that is
correct, or 1 where the majority is correct and 0 elsewhere, so that ILA is a share of visits."""
FAILED = 100.0
"""Error of a run that exploded: beyond what shares of 100 can give as a mean."""
_EDGE = 0.15
"""Edge of the first simplex, in units of a parameter's range."""

_COLUMNS = ["row", "arm", "replicate", *CELLS]
_COLUMNS += ["pass_start", "pass_final", "update_norm", "achieved_ratio"]
SHIFT, COPY = "shift", "copy"
_HEADS = {
    BASELINE: "TTRL row (fitted)",
    GUARD: "guard row: model",
    SHIFT: "TTRL row + model's change",
    MATCHED: "matched effort",
    COPY: "copy of TTRL row",
}
KINDS = tuple(_HEADS)
"""Predictions, all held against the guard row but for `ttrl`, the fitted one."""
_RESAMPLES = 500

TABLE, _FILES = "table.md", ("predictions", "cells", "summary", "parameters")
KEY = ["mechanism", "reading", "fit"]
_EVALUATION = 1_000_000
"""Added to the seed for the prediction, whose draws no fit has then used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitBudget:
    """Limits on the computation of a fit."""

    candidates: int = 24
    """Mechanisms of the random search, the start among them."""
    rounds: int = 2
    """Number of times that populations and mechanism are fitted in turn."""
    population: int = 20
    """Runs per row and round."""
    mechanism: int = 30
    """Runs of all rows per round."""
    problems: int = 1500
    """Per row and run over the replicates, at least; 2 to 16 replicates."""


QUICK = FitBudget(candidates=4, rounds=1, population=8, mechanism=8, problems=500)


class Fit(NamedTuple):
    """Numbers of the mechanism, and of the population by row."""

    mechanism: Mechanism
    shared: dict[str, Any]
    populations: dict[str, dict[str, Any]]
    loss: float
    """Mean error over the fitted cells in points, on the seeds of the fit."""


def fit(
    mechanism: Mechanism, rows: Sequence[TableRow], reading: str, seed: int, budget: FitBudget
) -> Fit:
    """Fit the TTRL rows; the guard rows are not used."""

    def loss(row: TableRow, shared: Unit, population: Unit) -> float:
        numbers = values(mechanism.parameters, shared) | values(POPULATION, population)
        replicates = min(16, max(2, -(-budget.problems // row.n_problems)))
        config = row_config(mechanism, row, numbers, replicates, seed)
        try:
            table = measure(with_arm(config, arm(BASELINE)), READINGS[reading])
        except UserError:
            # A step at which the logits explode is a bad candidate, not an end of the search.
            return FAILED
        return mean_error(table, row.ttrl)

    def total(shared: Unit) -> float:
        return float(np.mean([loss(row, shared, populations[row.name]) for row in rows]))

    populations = {row.name: population_start(row) for row in rows}
    # The start, and others by turns near it and anywhere in the cube.
    rng = np.random.default_rng([seed, 1])
    start = np.array([p.unit(p.start) for p in mechanism.parameters])
    shape = budget.candidates - 1, len(start)
    drawn, anywhere = start + _EDGE * rng.normal(size=shape), rng.random(shape)
    drawn[1::2] = anywhere[1::2]
    candidates = [start, *np.clip(drawn, 0, 1)]
    losses = [total(candidate) for candidate in candidates]
    if min(losses) >= FAILED:
        raise UserError(f"mechanism {mechanism.name}: every candidate's logits exploded")
    shared = candidates[int(np.argmin(losses))]
    for _ in range(budget.rounds):
        for row in rows:
            before = populations[row.name]
            populations[row.name] = _descend(partial(loss, row, shared), before, budget.population)
        shared = _descend(total, shared, budget.mechanism)
    by_row = {name: values(POPULATION, unit) for name, unit in populations.items()}
    return Fit(mechanism, values(mechanism.parameters, shared), by_row, total(shared))


def population_start(row: TableRow) -> Unit:
    """The named law of the row; the usual start for rows without one."""
    law = NAMED.get(row.name)
    starts = [p.start for p in POPULATION] if law is None else [law.mean, law.concentration]
    return np.array([p.unit(start) for p, start in zip(POPULATION, starts, strict=True)])


def _descend(loss: Callable[[Unit], float], start: Unit, runs: int) -> Unit:
    """Return the best point of a Nelder-Mead search within the unit cube."""
    # This import takes as long as all others together.
    from scipy.optimize import minimize

    # Into the cube: a vertex outside would be clipped onto the start.
    edges = np.diag(np.where(start < 0.5, _EDGE, -_EDGE))
    simplex = start + np.vstack([np.zeros_like(start), edges])
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


def _cells_of(table: pd.DataFrame) -> NDArray[np.float64]:
    """(rows, cells) percent of the problems."""
    return np.stack([floats(table, cell) for cell in CELLS], axis=1)


def mean_error(table: pd.DataFrame, target: Shares) -> float:
    """Mean over the cells of |mean over the replicates - target|, in points."""
    return float(np.abs(_cells_of(table).mean(axis=0) - np.array(target)).mean())


def predict(
    fitted: Fit, rows: Sequence[TableRow], reading: str, replicates: int, seed: int
) -> pd.DataFrame:
    """Run TTRL, the guard and TTRL at matched effort with frozen numbers and paired seeds.

    Returns:
        One row per row of the paper, arm (ttrl, guard, matched) and replicate: percent of the
        problems per cell, pass@1 before and after, update norm, and `achieved_ratio`, the matched
        arm's mean update norm by the guard's (NaN for the others).
    """
    run, parts = partial(measure, accuracy=READINGS[reading]), []
    for row in rows:
        numbers = fitted.shared | fitted.populations[row.name]
        config = row_config(fitted.mechanism, row, numbers, replicates, seed)
        plain = with_arm(config, arm(BASELINE))
        ttrl, guard = run(plain), run(with_arm(config, arm(GUARD)))
        _, ratio, matched = find(Control(MATCHED, "matched", GUARD), plain, ttrl, guard, run)
        arms = (BASELINE, ttrl, math.nan), (GUARD, guard, math.nan), (MATCHED, matched, ratio)
        for name, table, ratio in arms:
            parts.append(table.reset_index().assign(row=row.name, arm=name, achieved_ratio=ratio))
    return pd.concat(parts, ignore_index=True).reindex(columns=_COLUMNS)


def _predicted(predictions: pd.DataFrame, row: TableRow, kind: str) -> NDArray[np.float64]:
    """(R, cells) predicted percent of a row; one line for `copy`."""
    if kind == COPY:
        return np.array([row.ttrl])
    if kind == SHIFT:
        guard_RC, ttrl_RC = (_predicted(predictions, row, name) for name in (GUARD, BASELINE))
        return np.array(row.ttrl) + guard_RC - ttrl_RC
    return _cells_of(where(predictions, row=row.name, arm=kind).sort_values("replicate"))


def _target(rows: Sequence[TableRow], kind: str) -> NDArray[np.float64]:
    """The paper's percent, cell by cell, that a kind is held against."""
    return np.concatenate([row.ttrl if kind == BASELINE else row.guard for row in rows])


def cell_errors(predictions: pd.DataFrame, rows: Sequence[TableRow]) -> pd.DataFrame:
    """The error of every cell of every kind.

    Returns:
        row, kind, cell, published, predicted (mean), sd (over replicates, NaN for a single one and
        for `copy`), error (of the mean, in points, never negative).
    """
    parts = []
    for row, kind in itertools.product(rows, KINDS):
        published_C, values_RC = _target([row], kind), _predicted(predictions, row, kind)
        mean_C = values_RC.mean(axis=0)
        sd_C = values_RC.std(axis=0, ddof=1) if len(values_RC) > 1 else np.nan
        columns = {"row": row.name, "kind": kind, "cell": CELLS, "published": published_C}
        columns |= {"predicted": mean_C, "sd": sd_C, "error": np.abs(mean_C - published_C)}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def summary(predictions: pd.DataFrame, rows: Sequence[TableRow], seed: int) -> pd.DataFrame:
    """The mean error over the cells of all rows per kind, with its spread over seeds.

    Returns:
        kind, error (of the mean over replicates), low and high (95 % of resampled replicates, all
        rows' together; NaN for a single one and for `copy`), in points.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for kind in KINDS:
        predicted_RC = np.concatenate([_predicted(predictions, row, kind) for row in rows], axis=1)
        n_drawn_BR = resample_counts(len(predicted_RC), _RESAMPLES, rng)
        means_BC = n_drawn_BR @ predicted_RC / len(predicted_RC)
        errors_B = np.abs(means_BC - _target(rows, kind)).mean(axis=1)
        # Every resample of a single line is the line itself.
        low, high = percentile_interval(errors_B) if len(predicted_RC) > 1 else (np.nan, np.nan)
        error = np.abs(predicted_RC.mean(axis=0) - _target(rows, kind)).mean()
        lines.append((kind, float(error), low, high))
    return pd.DataFrame(lines, columns=["kind", "error", "low", "high"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every mechanism under every reading, fitted several times."""

    rows: Sequence[TableRow]
    mechanisms: Sequence[Mechanism]
    readings: Sequence[str] = tuple(READINGS)
    budget: FitBudget
    replicates: Count = 16
    """Runs per row and arm of the prediction."""
    fits: Count = 2
    seed: Annotated[int, Interval(f"[0, {_EVALUATION - 1}]")] = 0

    def __post_init__(self) -> None:
        check_fields(self, error=UserError)


def run_calibration(c: Calibration, out: Path, progress: bool = False) -> str:
    """Fit, predict and write the tables; returns that of errors in Markdown.

    Args:
        out: a new or empty folder, which is written at the end: predictions, cells, summary and
            parameters (those of the mechanism without a row) as Parquet, and the table of errors.
    """
    check_new_folder(out)
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in _FILES}
    jobs = [(n, m, r) for n in range(c.fits) for m in c.mechanisms for r in c.readings]
    bar = Bar(jobs, "calibrate", len(jobs), unit="fit", disable=not progress)
    with compilation_shown(bar.set_postfix_str):
        for number, mechanism, reading in bar:
            # Further apart than the seeds of two calibrations: neighbouring seeds share no fit.
            seed = c.seed + number * 2 * _EVALUATION
            fitted, new_seed = fit(mechanism, c.rows, reading, seed, c.budget), seed + _EVALUATION
            predictions = predict(fitted, c.rows, reading, c.replicates, new_seed)
            errors = cell_errors(predictions, c.rows), summary(predictions, c.rows, c.seed)
            of_rows = {"": fitted.shared, **fitted.populations}
            numbers = [(row, n, float(v)) for row, part in of_rows.items() for n, v in part.items()]
            numbers = pd.DataFrame(numbers, columns=["row", "name", "value"])
            made = (predictions, *errors, numbers.assign(loss=fitted.loss))
            for name, table in zip(_FILES, made, strict=True):
                key = dict(zip(KEY, (mechanism.name, reading, number), strict=True))
                tables[name].append(table.assign(**key).reindex(columns=[*KEY, *table]))
    joined = {
        name: pd.concat(parts).sort_values(KEY, kind="stable", ignore_index=True)
        for name, parts in tables.items()
    }
    text = error_table(joined["summary"], len(c.rows))
    with whole_folder(out) as place:
        for name, table in joined.items():
            table.to_parquet(place / f"{name}.parquet", index=False)
        (place / TABLE).write_text(text, encoding="utf-8")
    return text


def error_table(summaries: pd.DataFrame, n_rows: int) -> str:
    """Mean error of every kind as Markdown: over the fits, and the widest interval of any fit."""
    lines = []
    for (mechanism, reading), part in groups(summaries, ["mechanism", "reading"]):
        free = len(MECHANISMS[mechanism].parameters) + len(POPULATION) * n_rows
        lines.append([mechanism, reading, f"{free} / {len(CELLS) * n_rows}"])
        for kind in KINDS:
            fits = where(part, kind=kind)
            low, high = floats(fits, "low").min(), floats(fits, "high").max()
            interval = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
            lines[-1].append(f"{finite_mean(fits, 'error'):.2f}{interval}")
    table = TextTable(["mechanism", "reading", "fitted / cells", *_HEADS.values()], lines)
    return "".join(f"{line}\n" for line in table.markdown())


def chosen(option: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """The names that were asked for, each known and once; all if there are none."""
    for name in names:
        if name not in known:
            raise UserError(f"{option} {name!r}: unknown, use one of {', '.join(known)}")
        if names.count(name) > 1:
            raise UserError(f"{option}: {name} is there twice")
    return list(names or known)
