"""Matched effort: the unguarded control that moves as far as the guard does.

One factor on the control's learning rate gives it the guard's mean update norm per scheduled
optimizer step. Training takes another path at another step size, so the norm is not proportional
to the factor, and the factor is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE
from lab.base.columns import Floats, floats, groups, require, where
from lab.base.errors import UserError
from lab.compare.own_best import SEED

CLOSE = 0.002
"""Relative error of the matched effort that is not worth another run."""
MAX_TRIES = 4
"""Runs that the search for a factor may take."""

_NEEDED = ("replicate", "update_norm", "n_problems")


class Match(NamedTuple):
    """A factor on the learning rate and how well it meets the target."""

    factor: float
    achieved_ratio: float
    """Mean update norm at this factor divided by the target's; 1 is a perfect match."""
    tries: int
    """Runs that were measured."""


def search(
    measure: Callable[[float], float],
    initial_ratio: float,
    *,
    close: float = CLOSE,
    max_tries: int = MAX_TRIES,
) -> Match:
    """Return the factor whose run comes closest to the target's mean update norm.

    Takes secant steps on log(ratio) over log(factor), and stops at the first ratio within `close`
    of 1 or after `max_tries` runs.

    Args:
        measure: runs the control at a factor and returns its mean update norm divided by the
            target's.
        initial_ratio: the same ratio at factor 1, which has been run already.

    Raises:
        UserError: the control or the target did not move.
    """
    _check_ratio(initial_ratio)
    points = [(0.0, math.log(initial_ratio))]
    best = Match(1.0, initial_ratio, 0)
    while abs(best.achieved_ratio - 1) >= close and len(points) <= max_tries:
        position = _secant(points)
        factor = math.exp(position)
        ratio = measure(factor)
        _check_ratio(ratio)
        points.append((position, math.log(ratio)))
        if abs(ratio - 1) < abs(best.achieved_ratio - 1):
            best = Match(factor, ratio, 0)
    return best._replace(tries=len(points) - 1)


def _secant(points: list[tuple[float, float]]) -> float:
    """The position where the line through the last two points is 0; slope 1 from a single one."""
    position, value = points[-1]
    slope = 1.0
    if len(points) > 1:
        before, old = points[-2]
        slope = (value - old) / (position - before)
    # Far from a straight line the secant may point anywhere, so a step of slope 1 is safer.
    return position - value / (slope if 0.25 < slope < 4 else 1.0)


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio < math.inf:
        raise UserError(
            "matched effort: the guard's or the unguarded run did not move; raise the step size"
        )


def mean_update(steps: pd.DataFrame) -> float:
    """Mean norm of the update per scheduled optimizer step, over all replicates.

    Raises:
        UserError: there are no steps, or one has no finite norm.
    """
    require(steps, _NEEDED, "matched effort")
    norms, sizes = floats(steps, "update_norm"), floats(steps, "n_problems")
    if not sizes.sum() > 0 or not np.isfinite(norms).all():
        raise UserError("matched effort: update norms are missing; give a run that has trained")
    # A last batch may be smaller: each scheduled optimizer step counts once.
    return float((norms * sizes).sum() / sizes.sum())


def matched_factor(guard_steps: pd.DataFrame, baseline_steps: pd.DataFrame) -> float:
    """Factor on the baseline's learning rate that gives it the guard's mean update norm.

    It is exact where the norm is proportional to the learning rate along one path; training takes
    another path at another step size, so `achieved_ratio` says how well the match was met.

    Raises:
        UserError: steps are missing or the baseline did not move.
    """
    return _ratio(guard_steps, baseline_steps, "the baseline")


def achieved_ratio(matched_steps: pd.DataFrame, guard_steps: pd.DataFrame) -> float:
    """Mean update norm of the matched run by that of the guard's run; 1 is a perfect match.

    Raises:
        UserError: steps are missing or the guard's run did not move.
    """
    return _ratio(matched_steps, guard_steps, "the guard's run")


def _ratio(above: pd.DataFrame, below: pd.DataFrame, name: str) -> float:
    moved = mean_update(below)
    if not moved > 0:
        raise UserError(f"matched effort: {name} did not move; raise its learning rate")
    return mean_update(above) / moved


def beyond_effort(rows: pd.DataFrame, metric: str) -> Floats:
    """Return every row's metric minus the baseline's at the same update norm and seed.

    The baseline is interpolated linearly in the logarithm of its mean update norm.

    Args:
        rows: one per run: arm, step_size, seed, place, update_norm and the metric.

    Returns:
        (rows,) in the metric's unit; NaN where the norm lies outside of the baseline's, or a run
        did not move: nothing is extrapolated.

    Raises:
        UserError: a column is missing.
    """
    require(rows, ("arm", *SEED, "update_norm", metric), "equal effort")
    curves = _curves(where(rows, arm=BASELINE), metric)
    with np.errstate(divide="ignore"):
        log_norms = np.log(floats(rows, "update_norm"))
    seeds = zip(*(rows[name] for name in SEED), strict=True)
    expected = [
        np.interp(norm, *curves[seed], left=np.nan, right=np.nan) if seed in curves else np.nan
        for seed, norm in zip(seeds, log_norms, strict=True)
    ]
    return floats(rows, metric) - np.array(expected, np.float64)


def _curves(baseline: pd.DataFrame, metric: str) -> dict[object, tuple[Floats, Floats]]:
    """Seed to the baseline's log norms, ascending, and its metric there."""
    curves = {}
    for seed, part in groups(baseline, SEED):
        norm, value = floats(part, "update_norm"), floats(part, metric)
        kept = np.isfinite(value) & (norm > 0)
        order = np.argsort(norm[kept], kind="stable")
        if len(order):
            curves[seed] = (np.log(norm[kept])[order], value[kept][order])
    return curves
