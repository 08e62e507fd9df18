"""The learning rate over a run: a linear warm-up, then half a cosine that would end at 0.

The trainer sets the rate of every optimizer step; the simulator's policies take all of a batch's
rates, or their mean.
"""

from __future__ import annotations

import math


def rate_factor(done: int, n_scheduled: int, warmup_ratio: float) -> float:
    """Return the factor on the peak learning rate of one optimizer step.

    Args:
        done: scheduled steps before this one.
        n_scheduled: scheduled steps of the whole run, see `scheduled_steps`.
        warmup_ratio: share of them that warms up, rounded up to whole steps.
    """
    warmup = math.ceil(warmup_ratio * n_scheduled)
    if done < warmup:
        return (done + 1) / warmup
    progress = (done - warmup) / max(1, n_scheduled - warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def scheduled_steps(n_problems: int, batch_size: int, mini_batch: int) -> list[int]:
    """Return the optimizer steps of every batch of an epoch; the last batch may be smaller."""
    sizes = [min(batch_size, n_problems - start) for start in range(0, n_problems, batch_size)]
    return [-(-size // mini_batch) for size in sizes]


def step_factors(steps_of_epoch: list[int], epochs: int, warmup_ratio: float) -> list[list[float]]:
    """Return `rate_factor` of every optimizer step, batch by batch of a run.

    Args:
        steps_of_epoch: optimizer steps of every batch of an epoch, see `scheduled_steps`.
        epochs: epochs of the run.
        warmup_ratio: as for `rate_factor`.
    """
    n_scheduled, done, factors = epochs * sum(steps_of_epoch), 0, []
    for n_steps in steps_of_epoch * epochs:
        factors.append([rate_factor(done + k, n_scheduled, warmup_ratio) for k in range(n_steps)])
        done += n_steps
    return factors
