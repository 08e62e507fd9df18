"""Every difference between the arms of a comparison, at equal step and at each arm's own best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.arms import BASELINE
from lab.columns import floats, groups, select, unique, where
from lab.compare.own_best import best_among, own_best
from lab.stats.bootstrap import RESAMPLES, contrast_table
from sim.engine.tally import MEASURES
from sim.studies.arms.controls import is_guarded, rivals

EQUAL, BEST = "equal step", "own best step"
METRIC = "pass_final"
"""Metric by which the best step is chosen."""
BEST_RIVAL = "best rival"
"""Name of the best arm without a guard, itself chosen on the other half of the replicates."""


def done(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep that did not fail."""
    return where(rows, status="done")


def contrasts(
    rows: pd.DataFrame, by: Sequence[str], seed: int, resamples: int = RESAMPLES
) -> pd.DataFrame:
    """Return all paired differences between arms within every choice of the settings `by`.

    Args:
        rows: of `run_sweep`, or of the same form: settings, arm, replicate, status, measures.
        by: columns within whose values arms are compared. With several values of `step` among
            them, every arm is also compared at its own best step, and every guarded arm there
            with the best of its rivals.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Returns:
        One row per setting, pair of arms and metric: at ("equal step" or "own best step"), the
        columns of `by` (step is NaN at the best), arm, against (an arm or `BEST_RIVAL`), metric,
        mean (arm - against), sd, low, high (bootstrap), t_low, t_high, n, verdict. Metrics are
        `MEASURES` and `update`, the mean update norm in percent of TTRL's where it was run.
    """
    rows = done(rows)
    parts = [
        _differences(part, EQUAL, dict(zip(by, cell, strict=True)), seed, resamples)
        for cell, part in groups(rows, by)
    ]
    others = [name for name in by if name != "step"]
    for cell, part in groups(rows, others) if "step" in by else ():
        if len(unique(part, "step")) > 1:
            settings = {**dict(zip(others, cell, strict=True)), "step": np.nan}
            best = at_own_best(part)
            parts.append(_differences(best, BEST, settings, seed, resamples))
            parts.append(_to_best_rival(part, best, settings, seed, resamples))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def at_own_best(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every arm at its own best step, see `lab.compare.own_best.own_best`."""
    return own_best(done(rows), ["step"], METRIC)


def best_rival(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best rival at its best step, see `lab.compare.own_best.best_among`."""
    return best_among(done(rows), rivals(unique(rows, "arm")), ["step"], METRIC)


def _to_best_rival(
    rows: pd.DataFrame,
    best: pd.DataFrame,
    settings: dict[str, object],
    seed: int,
    resamples: int,
) -> pd.DataFrame:
    """Guarded arms at their best minus the best rival at its best."""
    guarded = select(best, np.array([is_guarded(arm) for arm in best["arm"]], bool))
    # The rival comes first, so that the differences are arm minus rival.
    both = pd.concat([best_rival(rows).assign(arm=BEST_RIVAL), guarded], ignore_index=True)
    return where(_differences(both, BEST, settings, seed, resamples), against=BEST_RIVAL)


def _differences(
    rows: pd.DataFrame, at: str, settings: dict[str, object], seed: int, resamples: int
) -> pd.DataFrame:
    table = contrast_table(_metrics(rows), seed, resamples)
    for position, (name, value) in enumerate({"at": at, **settings}.items()):
        table.insert(position, name, value)
    return table


def _metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """Measures by (arm, replicate)."""
    index = pd.MultiIndex.from_frame(pd.DataFrame({n: rows[n] for n in ("arm", "replicate")}))
    table = pd.DataFrame({name: floats(rows, name) for name in MEASURES}, index)
    base = where(rows, arm=BASELINE)
    if len(base):
        norms = dict(zip(base["replicate"], floats(base, "update_norm"), strict=True))
        base_norms = np.array([norms.get(r, np.nan) for r in rows["replicate"]])
        table["update"] = 100 * floats(rows, "update_norm") / base_norms
    return table
