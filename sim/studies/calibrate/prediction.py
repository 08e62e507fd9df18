"""Predictions of the guard rows from a frozen fit, on seeds it has not used, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, GUARD, MATCHED, arm
from lab.base.columns import where
from lab.base.stats import percentile_interval, resample_counts
from sim.settings.config import SimConfig
from sim.studies.calibrate.fitting import Fit, cells_of, measure_reading
from sim.studies.calibrate.mechanisms import Mechanism, row_config
from sim.studies.calibrate.published import CELLS, Row, Shares
from sim.studies.controls import find

COLUMNS = ("row", "arm", "replicate", *CELLS, "pass_start", "pass_final", "update_norm")


def predict(
    mechanism: Mechanism,
    fitted: Fit,
    rows: Sequence[Row],
    replicates: int,
    seed: int,
) -> pd.DataFrame:
    """Run TTRL, the guard and TTRL at matched effort with frozen numbers and paired seeds.

    Args:
        rows: to predict; each must have been fitted.
        replicates: runs per row and arm.
        seed: other than those of the fit.

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


COPY = "copy"
SHIFT = "shift"
KINDS = (BASELINE, GUARD, SHIFT, MATCHED, COPY)
"""Kinds of prediction:

ttrl     the fitted row against the paper's TTRL row
guard    the model's guard row against the paper's guard row
shift    the paper's TTRL row plus the model's guard - TTRL, against the paper's guard row
matched  the model's TTRL at matched effort, against the paper's guard row
copy     the paper's TTRL row, against its guard row: no model at all"""
_RESAMPLES = 500


def predicted(predictions: pd.DataFrame, row: Row, kind: str) -> NDArray[np.float64]:
    """(R, cells) predicted percent of a row; one line for `copy`.

    Args:
        predictions: of one fit, see `predict`.
        kind: of `KINDS`.
    """
    if kind == COPY:
        return np.array([row.ttrl])
    if kind == SHIFT:
        guard_RC, ttrl_RC = (predicted(predictions, row, name) for name in (GUARD, BASELINE))
        return np.array(row.ttrl) + guard_RC - ttrl_RC
    runs = where(predictions, row=row.name, arm=kind)
    return cells_of(runs)[np.argsort(runs["replicate"].to_numpy())]


def cell_errors(predictions: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """Return the error of every cell of every kind.

    Returns:
        row, kind, cell, published, predicted (mean), sd (over replicates), error (of the mean, in
        points, never negative).
    """
    lines = []
    for row in rows:
        for kind in KINDS:
            target = _target(row, kind)
            values_RC = predicted(predictions, row, kind)
            sd_C = values_RC.std(axis=0, ddof=1) if len(values_RC) > 1 else np.zeros(len(CELLS))
            mean_C = values_RC.mean(axis=0)
            for c, cell in enumerate(CELLS):
                error = abs(mean_C[c] - target[c])
                lines.append((row.name, kind, cell, target[c], mean_C[c], sd_C[c], error))
    names = ["row", "kind", "cell", "published", "predicted", "sd", "error"]
    return pd.DataFrame(lines, columns=names)


def summary(predictions: pd.DataFrame, rows: Sequence[Row], seed: int) -> pd.DataFrame:
    """Return the mean error over the cells of all rows per kind, with its spread over seeds.

    Returns:
        kind, error (of the mean over replicates), low and high (95 % of resampled replicates, all
        rows' together), in points.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for kind in KINDS:
        predicted_RC = np.concatenate([predicted(predictions, row, kind) for row in rows], axis=1)
        target_C = np.concatenate([_target(row, kind) for row in rows])
        n_drawn_BR = resample_counts(len(predicted_RC), _RESAMPLES, rng)
        means_BC = n_drawn_BR @ predicted_RC / len(predicted_RC)
        low, high = percentile_interval(np.abs(means_BC - target_C).mean(axis=1))
        error = float(np.abs(predicted_RC.mean(axis=0) - target_C).mean())
        lines.append((kind, error, low, high))
    return pd.DataFrame(lines, columns=["kind", "error", "low", "high"])


def _target(row: Row, kind: str) -> Shares:
    return row.ttrl if kind == BASELINE else row.guard
