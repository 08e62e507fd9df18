"""The control that moves as far as the guard does without a guard (SPEC section 12)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.columns import floats, ints, require
from lab.errors import UserError

_NEEDED = ("replicate", "update_norm", "n_problems")


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


def update_by_replicate(steps: pd.DataFrame) -> pd.Series:
    """Mean norm of the update per scheduled optimizer step, indexed by replicate."""
    require(steps, _NEEDED, "matched effort")
    norms, sizes = floats(steps, "update_norm"), floats(steps, "n_problems")
    replicates, place = np.unique(ints(steps, "replicate"), return_inverse=True)
    total = np.bincount(place, norms * sizes, len(replicates))
    means = total / np.bincount(place, sizes, len(replicates))
    return pd.Series(means, pd.Index(replicates, name="replicate"), name="update_norm")


def matched_factor(guard_steps: pd.DataFrame, baseline_steps: pd.DataFrame) -> float:
    """Factor on the baseline's learning rate that gives it the guard's mean update norm.

    It is exact where the norm is proportional to the learning rate along one path; training takes
    another path at another step size, so `achieved_ratio` says how well the match was met.

    Args:
        guard_steps: a trace's steps under the guard.
        baseline_steps: the same seeds without a guard.

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
