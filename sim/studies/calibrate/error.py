"""Errors of predictions in points per cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.arms import BASELINE, GUARD, MATCHED
from lab.columns import floats, where
from lab.stats.bootstrap import percentile_interval, resample_counts
from sim.settings.options import Loss
from sim.studies.calibrate.published import CELLS, Row, Shares

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


def mean_error(table: pd.DataFrame, target: Shares, loss: Loss = "points") -> float:
    """Return the mean over the cells of |mean over the replicates - target|.

    Args:
        table: one row per replicate, see `sim.engine.run.measure`.
        target: of the paper.
        loss: `points`, or `roots` for the distance of 10 * sqrt(percent), in which the sampling
            error of a share is about the same for rare and common fates: .2 against 0 % counts as
            much as 53.8 against 47.4 %.
    """
    mean_C, target_C = _cells(table).mean(axis=0), np.array(target)
    if loss == "roots":
        mean_C, target_C = 10 * np.sqrt(mean_C), 10 * np.sqrt(target_C)
    return float(np.abs(mean_C - target_C).mean())


def predicted(predictions: pd.DataFrame, row: Row, kind: str) -> NDArray[np.float64]:
    """(R, cells) predicted percent of a row; one line for `copy`.

    Args:
        predictions: of one fit, see `sim.studies.calibrate.prediction`.
        row: of the paper.
        kind: of `KINDS`.
    """
    if kind == COPY:
        return np.array([row.ttrl])
    if kind == SHIFT:
        guard_RC, ttrl_RC = (predicted(predictions, row, name) for name in (GUARD, BASELINE))
        return np.array(row.ttrl) + guard_RC - ttrl_RC
    runs = where(predictions, row=row.name, arm=kind)
    return _cells(runs)[np.argsort(runs["replicate"].to_numpy())]


def cell_errors(predictions: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """Return the error of every cell of every kind.

    Args:
        predictions: of one fit.
        rows: of the paper.

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

    Args:
        predictions: of one fit.
        rows: of the paper.
        seed: of the resamples.

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


def _cells(table: pd.DataFrame) -> NDArray[np.float64]:
    return np.stack([floats(table, cell) for cell in CELLS], axis=1)
