"""ROC curves of the alarm's scores at one visit, with a band over replicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.alarm.risk import SCORES
from lab.alarm.table import judge
from lab.columns import Bools, Floats, Ints
from lab.stats.bootstrap import resample_counts
from lab.stats.paired import LEVEL

_GRID = np.linspace(0, 1, 201)
_STEP = 1e-9
"""Keeps the ends of a vertical piece of a curve apart; far below any share of problems."""


def roc_table(
    visits: pd.DataFrame,
    fates: pd.DataFrame,
    rng: np.random.Generator,
    at: int,
    *,
    scores: Sequence[str] = SCORES,
    folds: int = 4,
    n_resamples: int = 1000,
) -> pd.DataFrame:
    """Share of the lost problems that a score detects for a given share of false alarms.

    The curve is the mean of the replicates' own curves, weighted by their pairs of a lost and a
    kept problem, so that its area is the AUROC of `lab.alarm.table.alarm_table` with pairs of one
    run. The band is a 95 % bootstrap over replicates at each share of false alarms on its own.

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`.
        rng: deals the folds and draws the bootstrap.
        at: the visit after which is judged.
        scores: out of `lab.alarm.table.SCORES`.
        folds: at most the number of replicates.
        n_resamples: bootstrap draws.

    Returns:
        One row per score and point: score, fpr (kept problems that are alarmed at, 0 to 1), tpr
        (lost problems that are), low, high. NaN where no replicate has lost and kept problems.

    Raises:
        UserError: as `lab.alarm.table.alarm_table`.
        ValueError: a score is not one.
    """
    if unknown := sorted(set(scores) - set(SCORES)):
        raise ValueError(f"{', '.join(unknown)}: not among {', '.join(SCORES)}")
    found = judge(visits, fates, rng, (at,), folds)
    draws_BR = resample_counts(found.n_replicates, n_resamples, rng)
    parts = []
    for name in scores:
        tpr_RG, pairs_R = _curves(
            found.scores_TS[name][0], found.cohort.lost_S, found.replicate_S, found.n_replicates
        )
        points = {"score": name, "fpr": _GRID, **_band(tpr_RG, pairs_R, draws_BR)}
        parts.append(pd.DataFrame(points))
    return pd.concat(parts, ignore_index=True)


def roc_points(score: Floats, lost: Bools) -> tuple[Floats, Floats]:
    """The corners of a ROC curve; problems of one score are one corner.

    Args:
        score: (problems,) the higher, the likelier lost.
        lost: (problems,) bool, both values present.

    Returns:
        False-alarm rate and hit rate at every threshold from the highest on, (corners,) each,
        starting at (0, 0) and ending at (1, 1).
    """
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    hits, alarms = (np.cumsum(who[order])[last] for who in (lost, ~lost))
    return np.append(0, alarms / alarms[-1]), np.append(0, hits / hits[-1])


def _curves(
    score_S: Floats, lost_S: Bools, replicate_S: Ints, n_replicates: int
) -> tuple[Floats, Floats]:
    """(R, G) hit rates on the grid, and (R,) pairs of a lost and a kept problem."""
    tpr_RG, pairs_R = np.zeros((n_replicates, len(_GRID))), np.zeros(n_replicates)
    for r in range(n_replicates):
        own = (replicate_S == r) & np.isfinite(score_S)
        pairs_R[r] = lost_S[own].sum() * (~lost_S[own]).sum()
        if pairs_R[r]:
            fpr, tpr = roc_points(score_S[own], lost_S[own])
            tpr_RG[r] = np.interp(_GRID + _STEP, fpr + _STEP * np.arange(len(fpr)) / len(fpr), tpr)
    return tpr_RG, pairs_R


def _band(tpr_RG: Floats, pairs_R: Floats, draws_BR: NDArray[np.int64]) -> dict[str, Floats]:
    if not pairs_R.any():
        return dict.fromkeys(("tpr", "low", "high"), np.full(len(_GRID), np.nan))
    weight_BR = draws_BR * pairs_R
    drawn = weight_BR.sum(axis=1) > 0
    tpr_BG = weight_BR[drawn] @ tpr_RG / weight_BR[drawn].sum(axis=1, keepdims=True)
    low_G, high_G = np.quantile(tpr_BG, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {"tpr": pairs_R @ tpr_RG / pairs_R.sum(), "low": low_G, "high": high_G}
