"""Predictions of the guard rows from a frozen fit, on seeds that the fit has not used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from lab.arm_settings import with_arm
from lab.arms import BASELINE, GUARD, MATCHED, arm
from sim.settings.config import SimConfig
from sim.studies.calibrate.fitting import Fit, measure_reading
from sim.studies.calibrate.mechanisms import Mechanism, row_config
from sim.studies.calibrate.published import CELLS, Row
from sim.studies.controls import find

COLUMNS = ("row", "arm", "replicate", *CELLS, "pass_start", "pass_final", "update_norm")


def predict(
    mechanism: Mechanism,
    fitted: Fit,
    rows: Sequence[Row],
    replicates: int,
    seed: int,
    tick: Callable[[], object] | None = None,
) -> pd.DataFrame:
    """Run TTRL, the guard and TTRL at matched effort with frozen numbers and paired seeds.

    Args:
        mechanism: that was fitted.
        fitted: the fit.
        rows: to predict; each must have been fitted.
        replicates: runs per row and arm.
        seed: other than those of the fit.
        tick: called after every row.

    Returns:
        One row per row of the paper, arm (ttrl, guard, matched) and replicate: percent of the
        problems per cell, pass@1 before and after, update norm, and `achieved_ratio`, the matched
        arm's mean update norm by the guard's (NaN for the others).

    Raises:
        UserError: the logits stopped being finite.
    """
    parts = []
    for row in rows:
        config = row_config(mechanism, row, fitted.shared, fitted.own[row.name], replicates, seed)
        parts += [part.assign(row=row.name) for part in _arms(config, fitted)]
        if tick is not None:
            tick()
    return pd.concat(parts, ignore_index=True).reindex(columns=[*COLUMNS, "achieved_ratio"])


def _arms(config: SimConfig, fitted: Fit) -> list[pd.DataFrame]:
    def run(config: SimConfig) -> pd.DataFrame:
        return measure_reading(config, fitted.reading)

    plain = with_arm(config, arm(BASELINE))
    ttrl, guard = run(plain), run(with_arm(config, arm(GUARD)))
    matched = find("matched", replace(plain, step_factor=1.0), guard, ttrl, run)
    named = {BASELINE: ttrl, GUARD: guard, MATCHED: matched.table}
    ratio = {MATCHED: matched.achieved_ratio}
    return [
        table.reset_index().assign(arm=name, achieved_ratio=ratio.get(name, float("nan")))
        for name, table in named.items()
    ]
