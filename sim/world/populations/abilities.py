"""Laws of the ability: the probability of the correct answer before training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lab.errors import UserError
from sim.settings.config import SimConfig
from sim.world.populations.files import read_first_accuracies, read_histogram
from sim.world.populations.named import NAMED

Sampler = Callable[[np.random.Generator], NDArray[np.float64]]
"""From random numbers to (N,) abilities."""

FREE: dict[str, tuple[str, ...]] = {
    "beta": ("ability_mean", "ability_concentration"),
    "point": ("ability_mean",),
    "mixture": ("mixture",),
    "histogram": ("histogram",),
    "trace": ("trace",),
}
"""Populations given by settings, and which settings they need."""


def ability_sampler(config: SimConfig) -> Sampler:
    """The law of the abilities of one replicate; files are read here, once.

    Raises:
        UserError: a file has a defect, or a trace and `n_problems` do not fit together.
    """
    n = config.n_problems
    if config.population == "mixture":
        return lambda rng: _mixture(rng, config.mixture, n)
    if config.population == "histogram":
        assert config.histogram is not None  # SimConfig asks for it
        p0_B, share_B = read_histogram(config.histogram)
        return lambda rng: rng.choice(p0_B, n, p=share_B)
    if config.population == "trace":
        return _trace(config)
    mean, concentration = beta_law(config)
    return lambda rng: beta(rng, mean, concentration, n)


def beta_law(config: SimConfig) -> tuple[float, float]:
    """Mean and concentration of a named population, `beta` or `point` (infinite)."""
    named = NAMED.get(config.population)
    mean, concentration = config.ability_mean, config.ability_concentration
    if named is not None:
        mean = named.mean if mean is None else mean
        concentration = named.concentration if concentration is None else concentration
    if config.population == "point" or concentration is None:
        concentration = np.inf
    assert mean is not None  # SimConfig asks for it where the population has none
    return mean, concentration


def beta(
    rng: np.random.Generator, mean: float, concentration: float, n: int
) -> NDArray[np.float64]:
    """Beta variables by mean and concentration; constant where the law has one point."""
    if not np.isfinite(concentration) or min(mean, 1 - mean) * concentration <= 0:
        return np.full(n, float(mean))
    return rng.beta(mean * concentration, (1 - mean) * concentration, n)


def _mixture(
    rng: np.random.Generator, laws: tuple[tuple[float, float, float], ...], n: int
) -> NDArray[np.float64]:
    weight_L = np.array([law[0] for law in laws])
    law_N = rng.choice(len(laws), n, p=weight_L / weight_L.sum())
    drawn_LN = np.stack([beta(rng, mean, spread, n) for _, mean, spread in laws])
    return drawn_LN[law_N, np.arange(n)]


def _trace(config: SimConfig) -> Sampler:
    """Problem by problem with `fixed_population`, else drawn with replacement."""
    assert config.trace is not None  # SimConfig asks for it
    known = read_first_accuracies(config.trace)
    if not config.fixed_population:
        return lambda rng: rng.choice(known, config.n_problems)
    if len(known) != config.n_problems:
        raise UserError(
            f"n_problems = {config.n_problems}: {config.trace} has {len(known)} problems with a "
            "known answer, and fixed_population takes them one by one"
        )
    return lambda rng: known
