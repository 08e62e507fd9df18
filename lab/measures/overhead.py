"""Time of a training step by phase, against a baseline on the same machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE
from lab.base.columns import finite_mean, floats, ints, require
from lab.base.errors import UserError

PHASES = {
    "seconds_rollout": "Sampling",
    "seconds_further": "Further sampling",
    "seconds_grade": "Reading answers",
    "seconds_guard": "Guard",
    "seconds_update": "Update",
    "seconds_sync": "Handing over weights",
}
"""Column of the steps to the name shown to readers."""
OTHER, STEP = "Other", "Whole step"
WARM_UP = 1
"""First steps that are left out: they compile, allocate and fill caches."""


def step_seconds(steps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean seconds per step and phase of every arm, and their share of the baseline's step.

    Args:
        steps: arm to a trace's steps, all from one machine; a replicate's number means the same
            seed in each.

    Returns:
        One row per arm, replicate and phase (names of `PHASES`, `OTHER` for what none of them
        covers, `STEP` for the whole): arm, replicate, phase, seconds, relative (percent of the
        baseline's whole step of the same replicate; NaN where the baseline lacks it).

    Raises:
        UserError: the baseline is not there, its clock was not read, or a replicate has no more
            steps than the warm-up.
    """
    if BASELINE not in steps:
        raise UserError(f"overhead: no run of {BASELINE}; give one on the same machine")
    parts = {arm: _seconds(table, arm) for arm, table in steps.items()}
    measured = {arm: part for arm, part in parts.items() if part is not None}
    if BASELINE not in measured:
        raise UserError(f"overhead: {BASELINE} has no seconds_step; only real runs are timed")
    base = measured[BASELINE][STEP]
    found = []
    for arm, table in measured.items():
        long = table.rename_axis("replicate").reset_index()
        long = long.melt("replicate", var_name="phase", value_name="seconds").assign(arm=arm)
        whole = base.reindex(long["replicate"]).to_numpy(np.float64)
        found.append(long.assign(relative=100 * floats(long, "seconds") / whole))
    columns = ["arm", "replicate", "phase", "seconds", "relative"]
    return pd.concat(found, ignore_index=True).reindex(columns=columns)


def _seconds(steps: pd.DataFrame, arm: str) -> pd.DataFrame | None:
    """Mean seconds, replicates down and phases across; None where no step was timed."""
    require(steps, ("replicate", "step"), "overhead")
    if "seconds_step" not in steps or not np.isfinite(floats(steps, "seconds_step")).any():
        return None
    replicate = ints(steps, "replicate")
    rank = steps.groupby("replicate")["step"].rank(method="first").to_numpy()
    rows = {}
    for one in np.unique(replicate):
        own = steps.take(np.flatnonzero((replicate == one) & (rank > WARM_UP)))
        if own.empty:
            raise UserError(
                f"overhead: {arm}, replicate {one} has no step after {WARM_UP} of warm-up; "
                "train longer"
            )
        rows[one] = _mean_phases(own)
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean_phases(own: pd.DataFrame) -> dict[str, float]:
    means = {title: _mean(own, name) for name, title in PHASES.items()}
    whole = _mean(own, "seconds_step")
    # Phases may overlap by a rounding of the clock: the rest is never negative.
    return means | {OTHER: max(whole - sum(means.values()), 0.0), STEP: whole}


def _mean(own: pd.DataFrame, name: str) -> float:
    """Mean of the measured steps, 0 where the phase was not there at all."""
    return float(np.nan_to_num(finite_mean(own, name))) if name in own else 0.0
