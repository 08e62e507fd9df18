"""Drawing the answers' probabilities around the ability."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from sim.settings.config import SimConfig
from sim.world.populations.abilities import Sampler, ability_sampler, beta
from sim.world.populations.population import Population
from sim.world.random import generator

P_MIN = 1e-9
"""Least probability of an answer, so that every logit is finite."""


def draw_population(config: SimConfig, threads: int = 1) -> Population:
    """The problems of all replicates of a run.

    With `fixed_population` every replicate has the problems of replicate 0.

    Args:
        config: of the run.
        threads: to draw in; NumPy lets others work while it draws, and the numbers are the same.

    Raises:
        UserError: the population's file has a defect.
    """
    ability = ability_sampler(config)
    last = config.first_replicate + config.replicates
    if config.fixed_population:
        drawn = [_draw_one(config, ability, 0)] * config.replicates
    else:
        draw_one = functools.partial(_draw_one, config, ability)
        numbers = range(config.first_replicate, last)
        with ThreadPoolExecutor(threads) as pool:
            drawn = list(map(draw_one, numbers) if threads == 1 else pool.map(draw_one, numbers))
    p0, truth, attractor = (np.stack(parts) for parts in zip(*drawn, strict=True))
    return Population(p0, truth, attractor)


def _draw_one(
    config: SimConfig, ability: Sampler, replicate: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Probabilities, truths and attractors of one replicate, (N, A), (N,) and (N,)."""
    rng = generator(config.seed, replicate, "population")
    n, a = config.n_problems, config.n_answers
    correct_N = np.clip(ability(rng), config.ability_floor, 1 - config.ability_floor)
    share_N = beta(rng, config.att_share, config.att_concentration, n)
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
