"""The gain of an arm over a baseline that moves as far, read off the baseline's step sizes.

A run at matched effort (`lab.compare.effort`) exists for one arm and one step size. Where the
baseline was run over a grid of step sizes, its result at any update norm in between follows by
interpolation. So every arm can be compared with it at the arm's own update norm, seed by seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.arms import BASELINE
from lab.columns import Floats, floats, groups, require, where
from lab.compare.own_best import SEED


def beyond_effort(rows: pd.DataFrame, metric: str, base: str = BASELINE) -> Floats:
    """Return every row's metric minus the baseline's at the same update norm and seed.

    The baseline is interpolated linearly in the logarithm of its mean update norm.

    Args:
        rows: one per run: arm, step_size, seed, place, update_norm and the metric.
        metric: a column.
        base: name of the baseline.

    Returns:
        (rows,) in the metric's unit; NaN where the norm lies outside of the baseline's, or a run
        did not move: nothing is extrapolated.

    Raises:
        UserError: a column is missing.
    """
    require(rows, ("arm", *SEED, "update_norm", metric), "equal effort")
    curves = _curves(where(rows, arm=base), metric)
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
