"""A smaller learning rate, or the end of training, where labels stop being stable.

After the votes of every batch a label-free signal is read from the latest visit of every problem.
While it exceeds its limit, each batch multiplies the learning rate of the rest of the run by
`brake`. At 0 this is early stopping.
"""

from __future__ import annotations

from guard_core.arrays import Array, namespace
from guard_core.config import GuardConfig


def signal(flipped: Array, match_rate: Array, visited: Array, config: GuardConfig) -> Array:
    """Return the signal of `brake_on`.

    Args:
        flipped: (..., N) 1 or True where the label changed at the problem's latest visit.
        match_rate: (..., N) of that visit.
        visited: (..., N) bool; problems that were visited in training.
        config: `brake_on` is read.

    Returns:
        (...,) share of all N problems whose label changed, or mean match rate of the visited
        problems, 0 before the first visit.
    """
    xp = namespace(match_rate)
    seen = xp.astype(visited, match_rate.dtype)
    if config.brake_on == "flip_rate":
        return xp.mean(xp.astype(flipped, match_rate.dtype) * seen, axis=-1)
    return xp.sum(match_rate * seen, axis=-1) / xp.clip(xp.sum(seen, axis=-1), min=1.0)


def brake_factor(value: Array, config: GuardConfig) -> Array:
    """Return the factor by which the learning rate of the rest of the run changes.

    Args:
        value: (...,) of `signal`.
        config: `brake` and `brake_above` are read.

    Returns:
        (...,) `brake` where the signal exceeds its limit, else 1.
    """
    xp = namespace(value)
    return xp.where(value > config.brake_above, config.brake * xp.ones_like(value), 1.0)
