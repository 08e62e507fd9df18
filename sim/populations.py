"""What the model knows before training: a distribution over answers for every problem.

* The correct answer has probability c ~ Beta(mean * s, (1 - mean) * s), the ability law of the
  named population (s is its concentration), cut off at ability_floor and 1 - ability_floor.
* The attractor, one wrong answer per problem, holds a share ~ Beta(att_share * t,
  (1 - att_share) * t) of the wrong mass 1 - c, with t = att_concentration.
* The other A - 2 wrong answers share the rest as Dirichlet(wrong_concentration).
* Answer ids are a uniform permutation per problem, so neither the truth nor the attractor has a
  preferred id and every tie-break rule, `first` included, is fair to it.

The law does not depend on the policy: both policies start from the same populations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.config import SimConfig
from sim.random import generator

P_MIN = 1e-9
"""Least probability of an answer, so that every logit is finite."""


class Ability(NamedTuple):
    """Ability law and size of one data set under one model."""

    mean: float
    """Mean probability of the correct answer."""
    concentration: float
    """a + b of the Beta law; below 2 it is U-shaped."""
    n_problems: int
    epochs: int
    """Length of the paper's training."""


NAMED: dict[str, Ability] = {
    "llama-math500": Ability(0.59, 0.18, 500, 30),
    "llama-amc": Ability(0.34, 0.3, 83, 30),
    "llama-aime24": Ability(0.17, 0.3, 30, 60),
    "qwen-math500": Ability(0.755, 0.17, 500, 30),
    "qwen-amc": Ability(0.5, 0.1, 83, 30),
    "qwen-aime25": Ability(0.18, 0.25, 30, 60),
}
"""Mean and concentration, fitted by a coarse grid so that plain TTRL under the attractor policy's
default numbers comes near the fate rows of the paper's `tab:full_fates`.

How near, mean and standard deviation of 20 replicates (Degraded, Marginal Degraded, Learned,
Stable Always Right, Always Wrong), the paper's row behind it:

    llama-math500  53.6 2   6.3 1  0.0  4.7 2  35.2 2    53.8  6.4  0.2   2.8  36.4
    llama-amc       6.3 3   7.0 3  0.0 24.0 7  58.4 6    12.0  3.6  1.2  24.1  55.4
    llama-aime24    0.3 1   4.8 5  0.0 13.0 6  75.8 8     3.3  3.3  3.3  13.3  76.7
    qwen-math500   12.3 12  3.3 1  0.0 62.3 13 20.1 2    13.8  2.0  0.6  63.0  20.2
    qwen-amc        1.6 2   2.6 2  0.0 45.8 7  47.3 7     1.2  1.2  0.0  48.2  47.0
    qwen-aime25     0.7 1   3.7 4  0.0 15.0 7  75.5 8     3.3  0.0  0.0  13.3  76.7

Two fitted numbers for five cells is no test of the mechanism. Nothing is ever Learned here, which
the paper's rows do show. The qwen-math500 row is a mean of runs that collapse and runs that do
not: it sits at the edge, so single runs lie far from it.
"""

FREE: dict[str, tuple[str, ...]] = {
    "beta": ("ability_mean", "ability_concentration"),
    "point": ("ability_mean",),
}
"""Populations given by settings, and which they need: `point` gives every problem one ability."""


@dataclass(frozen=True, slots=True)
class Population:
    """The problems of every replicate before training."""

    p0_RNA: NDArray[np.float64]
    """Answer probabilities; rows sum to one."""
    truth_RN: NDArray[np.int64]
    """Id of the correct answer."""
    attractor_RN: NDArray[np.int64]
    """Id of the attractor."""


def draw_population(config: SimConfig) -> Population:
    """The problems of all replicates of a run.

    With `fixed_population` every replicate has the problems of replicate 0.
    """
    last = config.first_replicate + config.replicates
    if config.fixed_population:
        drawn = [_draw_one(config, 0)] * config.replicates
    else:
        drawn = [_draw_one(config, r) for r in range(config.first_replicate, last)]
    p0, truth, attractor = (np.stack(parts) for parts in zip(*drawn, strict=True))
    return Population(p0, truth, attractor)


def ability_law(config: SimConfig) -> tuple[float, float]:
    """Mean and concentration of the ability; an infinite concentration for `point`."""
    named = NAMED.get(config.population)
    mean, concentration = config.ability_mean, config.ability_concentration
    if named is not None:
        mean = named.mean if mean is None else mean
        concentration = named.concentration if concentration is None else concentration
    if config.population == "point" or concentration is None:
        concentration = np.inf
    assert mean is not None  # SimConfig asks for it where the population has none
    return mean, concentration


def _draw_one(
    config: SimConfig, replicate: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    rng = generator(config.seed, replicate, "population")
    n, a = config.n_problems, config.n_answers
    mean, concentration = ability_law(config)
    correct_N = _beta(rng, mean, concentration, n)
    correct_N = np.clip(correct_N, config.ability_floor, 1 - config.ability_floor)
    share_N = _beta(rng, config.att_share, config.att_concentration, n)
    rest_NA = np.ones((n, 0))
    if a == 2:
        share_N = np.ones(n)
    else:
        rest_NA = rng.dirichlet(np.full(a - 2, config.wrong_concentration), n)
    wrong_N = 1 - correct_N
    p0_NA = np.concatenate(
        [
            correct_N[:, None],
            (wrong_N * share_N)[:, None],
            (wrong_N * (1 - share_N))[:, None] * rest_NA,
        ],
        axis=1,
    )
    p0_NA = np.maximum(p0_NA, P_MIN)
    p0_NA /= p0_NA.sum(axis=1, keepdims=True)
    ids_NA = rng.permuted(np.tile(np.arange(a), (n, 1)), axis=1)
    placed_NA = np.empty_like(p0_NA)
    np.put_along_axis(placed_NA, ids_NA, p0_NA, axis=1)
    return placed_NA, ids_NA[:, 0].copy(), ids_NA[:, 1].copy()


def _beta(
    rng: np.random.Generator, mean: float, concentration: float, n: int
) -> NDArray[np.float64]:
    """Beta variables by mean and concentration; constant where the law has one point."""
    if not 0 < mean < 1 or not np.isfinite(concentration):
        return np.full(n, float(mean))
    return rng.beta(mean * concentration, (1 - mean) * concentration, n)
