"""The learning rate over a run: a warm-up, half a cosine that would end at 0, and the brake.

The brake reads a label-free signal from the latest visit of every problem after the votes of a
batch. While it exceeds its limit, each batch multiplies the learning rate of the rest of the run by
`brake`. At 0 this is early stopping.
"""

from __future__ import annotations

import math

import numpy as np

from guard_core.config import ROUNDING, GuardConfig
from guard_core.votes import Array

FIRST_RATE, LAST_RATE = 0.01, 1e-5
"""Rates at which a teacher follows the model in the first and the last batch of a run."""


def rate_factor(done: int, n_scheduled: int, warmup_ratio: float) -> float:
    """Return the factor on the peak learning rate after `done` of `n_scheduled` steps.

    The share that warms up is rounded up to whole steps.
    """
    warmup = math.ceil(warmup_ratio * n_scheduled - 1e-9)  # .07 * 100 is 7 and a rounding error
    if done < warmup:
        return (done + 1) / warmup
    progress = (done - warmup) / max(1, n_scheduled - warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def teacher_rate(done: int, n_batches: int) -> float:
    """Return a teacher's rate, along a cosine, after `done` of `n_batches` before this one."""
    return LAST_RATE + (FIRST_RATE - LAST_RATE) * rate_factor(done, n_batches - 1, 0.0)


def scheduled_steps(n_problems: int, batch_size: int, mini_batch: int) -> list[int]:
    """Return the optimizer steps of every batch of an epoch; the last batch may be smaller."""
    sizes = [min(batch_size, n_problems - start) for start in range(0, n_problems, batch_size)]
    return [-(-size // mini_batch) for size in sizes]


def step_factors(steps_of_epoch: list[int], epochs: int, warmup_ratio: float) -> list[list[float]]:
    """Return `rate_factor` of every step, batch by batch, from an epoch's `scheduled_steps`."""
    n_scheduled, done, factors = epochs * sum(steps_of_epoch), 0, []
    for n_steps in steps_of_epoch * epochs:
        factors.append([rate_factor(done + k, n_scheduled, warmup_ratio) for k in range(n_steps)])
        done += n_steps
    return factors


def signal(flipped: Array, match_rate: Array, visited: Array, config: GuardConfig) -> Array:
    """(...,) signals of `brake_on`, from the latest visit of every problem, (..., N) each.

    The share of all N problems whose label changed, or the mean match rate of the visited ones.
    """
    if config.brake.brake_on == "flip_rate":
        return np.mean(flipped * visited, axis=-1)
    return np.sum(match_rate * visited, axis=-1) / np.maximum(np.sum(visited, axis=-1), 1)


def brake_factor(value: Array, config: GuardConfig) -> Array:
    """(...,) factors on the rest of the run's rate: `brake` where `signal` exceeds its limit."""
    return np.where(value > config.brake.brake_above + ROUNDING, config.brake.brake, 1.0)
