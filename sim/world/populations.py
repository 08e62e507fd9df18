"""Initial answer probabilities: a distribution over answers for every problem.

* The correct answer has the probability c, the ability, cut off at ability_floor and
  1 - ability_floor. Its law is the population: Beta(mean * s, (1 - mean) * s) with s the
  concentration of a name of `NAMED` or of the settings, or that of a setting of its own.
* The attractor, one wrong answer per problem, holds a share ~ Beta(att_share * t,
  (1 - att_share) * t) of the wrong mass 1 - c, with t = `ATT_CONCENTRATION`.
* The other A - 2 wrong answers share the rest as Dirichlet(`WRONG_CONCENTRATION`).
* Answer ids are a uniform permutation per problem, so neither the truth nor the attractor has a
  preferred id and every tie-break rule, `first` included, is fair to it.

All policies start from the same populations, except for `measured`, whose problems are those of
its response file. `docs/calibration.md` says how well such laws reproduce the paper's rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd

from lab.base.columns import floats, ints
from lab.base.errors import UserError, first_line
from lab.trace.trace import load
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.world.sampling import Floats, Ints, Population, generator
from sim.world.tree import first_probs, read_measured

ATT_CONCENTRATION = 4.0
"""a + b of the Beta law of the attractor's share."""
WRONG_CONCENTRATION = 0.5
"""Dirichlet parameter of the other wrong answers' shares."""
P_MIN = 1e-9
"""Least probability of an answer, so that every logit is finite."""

Sampler = Callable[[np.random.Generator], Floats]
"""From random numbers to (N,) abilities."""


def read_histogram(path: str) -> tuple[Floats, Floats]:
    """Read the bins of the ability and their shares from a CSV file, see `SimConfig.histogram`.

    Weights are shares that sum to 1, or whole counts of problems.
    """
    where = f"histogram: {path}"
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            options = {"index_col": False, "skipinitialspace": True, "skip_blank_lines": False}
            table = pd.read_csv(path, dtype=str, encoding="utf-8-sig", **options)
    except pd.errors.ParserWarning as error:  # pandas would leave entries out
        told = f"{where}: lines have more entries than the first; write p0,weight as in 0.5,1"
        raise UserError(told) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{where} cannot be read ({first_line(error)})") from error
    table = table.rename(columns=str.strip).dropna(how="all")
    if {"p0", "weight"} - set(table):
        raise UserError(f"{where}: the first line must name the columns p0 and weight")
    if table.empty:
        raise UserError(f"{where} holds no rows below its header")
    bounds = {"p0": (1.0, "a number in [0, 1]"), "weight": (sys.float_info.max, "a number >= 0")}
    columns = []
    for name, (most, bound) in bounds.items():
        columns.append(numbers := pd.Series(pd.to_numeric(table[name], errors="coerce")))
        for row in table.index[~numbers.between(0, most)]:
            text = table[name][row]
            raise UserError(f"{where}, line {row + 2}: {name} = {text!r}, must be {bound}")
    p0_B, weight_B = np.array(columns, np.float64)
    total = float(weight_B.sum())
    counts = bool((weight_B == np.floor(weight_B)).all())
    if total == 0 or not (counts or abs(total - 1) <= 1e-6):
        raise UserError(
            f"{where}: the weights sum to {total:g}, must sum to 1 or be whole counts above 0"
        )
    return p0_B, weight_B / total


def read_first_accuracies(folder: str) -> Floats:
    """(problems,) share of visit 0's votes that were right, in the order of the problem numbers.

    The run folder may be of either world. Several replicates of one problem are averaged, but not
    where each replicate drew problems of its own; problems without a known answer are left out.
    """
    trace = load(folder)
    visits = trace.visits
    accuracy = floats(visits, "label_accuracy")
    first = (ints(visits, "visit") == 0) & np.isfinite(accuracy)
    if not first.any():
        raise UserError(
            f"trace: {folder} has no label accuracy at visit 0; take a run whose true answers are "
            "known and that was voted on before training"
        )
    if trace.run.redraws_problems:
        return accuracy[first]
    _, place = np.unique(ints(visits, "problem")[first], return_inverse=True)
    return np.bincount(place, accuracy[first]) / np.bincount(place)


def draw_population(config: SimConfig) -> Population:
    """The problems of all replicates of a run; all those of replicate 0 if they are fixed."""
    ability, numbers = ability_sampler(config), drawn_numbers(config)
    drawn = {number: _draw_one(config, ability, number) for number in dict.fromkeys(numbers)}
    parts = zip(*(drawn[number] for number in numbers), strict=True)
    return Population(*map(np.stack, parts))


def drawn_numbers(config: SimConfig) -> list[int]:
    """Number of the replicate whose draws each replicate uses for its problems."""
    if config.fixed_population:
        return [0] * config.replicates
    return [*config.replicate_numbers]


def _draw_one(config: SimConfig, ability: Sampler, replicate: int) -> tuple[Floats, Ints, Ints]:
    """Probabilities, truths and attractors of one replicate, (N, A), (N,) and (N,)."""
    rng = generator(config.seed, replicate, "population")
    n, a = config.n_problems, config.n_answers
    correct_N = np.clip(ability(rng), config.ability_floor, 1 - config.ability_floor)
    share_N = beta(rng, config.att_share, ATT_CONCENTRATION, n)
    if a == 2:
        share_N, rest_NA = np.ones(n), np.ones((n, 0))
    else:
        rest_NA = rng.dirichlet(np.full(a - 2, WRONG_CONCENTRATION), n)
    wrong_N = 1 - correct_N
    rest_NA = (wrong_N * (1 - share_N))[:, None] * rest_NA
    p0_NA = np.column_stack([correct_N, wrong_N * share_N, rest_NA])
    p0_NA = np.maximum(p0_NA, P_MIN)
    p0_NA /= p0_NA.sum(axis=1, keepdims=True)
    ids_NA = rng.permuted(np.tile(np.arange(a), (n, 1)), axis=1)
    placed_NA = np.empty_like(p0_NA)
    np.put_along_axis(placed_NA, ids_NA, p0_NA, axis=1)
    return placed_NA, ids_NA[:, 0].copy(), ids_NA[:, 1].copy()


def measured_population(config: SimConfig) -> Population:
    """Return the problems of the response file, the same for all replicates.

    Probabilities are those before training among readable responses, the attractor is the likeliest
    wrong answer. Without a reference answer the truth is an id that no response gives.
    """
    assert config.response is not None  # SimConfig asks for it
    response = read_measured(config.response, config.n_problems, config.n_answers)
    p0_NA = np.maximum(first_probs(response)[:, :-1], P_MIN)
    p0_NA /= p0_NA.sum(axis=1, keepdims=True)
    truth_N = np.where(response.truth_N < 0, config.n_answers - 1, response.truth_N)
    wrong_NA = p0_NA.copy()
    wrong_NA[np.arange(len(truth_N)), truth_N] = -1.0
    parts = (p0_NA, truth_N, wrong_NA.argmax(axis=1))
    return Population(*(np.stack([part] * config.replicates) for part in parts))


def ability_sampler(config: SimConfig) -> Sampler:
    """The law of the abilities of one replicate; files are read here, once."""
    n = config.n_problems
    if config.population == "histogram":
        assert config.histogram is not None  # SimConfig asks for it
        p0_B, share_B = read_histogram(config.histogram)
        return lambda rng: rng.choice(p0_B, n, p=share_B)
    if config.population == "trace":
        assert config.trace is not None  # SimConfig asks for it
        known = read_first_accuracies(config.trace)
        if not config.fixed_population:
            return lambda rng: rng.choice(known, n)
        if len(known) != n:
            raise UserError(
                f"n_problems = {n}: {config.trace} has {len(known)} problems with a known answer, "
                "and fixed_population takes them one by one"
            )
        return lambda rng: known
    law = NAMED.get(config.population)
    mean, concentration = config.ability_mean, config.ability_concentration
    if law is not None:
        mean = law.mean if mean is None else mean
        concentration = law.concentration if concentration is None else concentration
    if config.population == "point" or concentration is None:
        concentration = np.inf
    assert mean is not None  # SimConfig asks for it where the population has none
    return lambda rng: beta(rng, mean, concentration, n)


def beta(rng: np.random.Generator, mean: float, concentration: float, n: int) -> Floats:
    """Beta variables by mean and concentration; constant where the law has one point."""
    if not np.isfinite(concentration) or min(mean, 1 - mean) * concentration <= 0:
        return np.full(n, float(mean))
    return rng.beta(mean * concentration, (1 - mean) * concentration, n)
