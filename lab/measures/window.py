"""The extinction window: labels stop competing, accuracy follows (docs/method.md, section 11)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.columns import ROUNDING, Bools, Floats, Ints, flags, floats, ints, require
from lab.measures.fate import histories

DROP = 0.02
"""Fall of pass@1 below its running maximum that counts as a drop."""
WINDOW = ("fr_peak", "peak", "collapse", "drop", "lead")
"""Columns of `run_windows`."""


def run_windows(dynamics: pd.DataFrame) -> pd.DataFrame:
    """Peak and collapse of the flip rate, and the drop of pass@1, per run.

    Args:
        dynamics: from `lab.measures.dynamics.dynamics`, with evaluations.

    Returns:
        Indexed by replicate: `fr_peak` (share) and `peak` (its first epoch), `collapse` (first
        epoch after the peak from which FR stays below half of the peak), `drop` (first epoch from
        which pass@1 stays 2 points below its running maximum), `lead` = drop - collapse, in
        epochs. NaN where it did not happen; without any flip there is no peak and no collapse.

    Raises:
        UserError: a column is missing.
    """
    needed = ("replicate", "epoch", "flip_rate", "pass_at_1")
    require(dynamics, needed, "extinction window")
    ordered = dynamics.take(np.argsort(ints(dynamics, "epoch"), kind="stable"))
    own = ints(ordered, "replicate")
    replicates = np.unique(own)
    rows = [_window(ordered.take(np.flatnonzero(own == one))) for one in replicates]
    return pd.DataFrame(rows, pd.Index(replicates, name="replicate"), list(WINDOW))


def competitive_windows(visits: pd.DataFrame) -> pd.DataFrame:
    """Last visit at which the correct answer is competitive, per problem.

    Args:
        visits: a trace's visits; visit 0 and problems without a known true answer are left out.

    Returns:
        One row per replicate and problem: `last_competitive` (visit at which the correct answer
        last held a quarter of the votes, 0 if never) and `window` (its share of the visits).

    Raises:
        UserError: a column is missing.
    """
    needed = ("replicate", "problem", "visit", "label_accuracy", "correct_competitive")
    require(visits, needed, "extinction window")
    found = histories(visits, np.isfinite(floats(visits, "label_accuracy")))
    competitive = flags(visits, "correct_competitive")[found.order]
    within = np.arange(len(found.order)) - np.repeat(found.start, found.length)
    place = np.where(competitive, within + 1, 0)
    last = np.maximum.reduceat(place, found.start) if len(found.start) else place
    rows = found.order[found.start]
    return pd.DataFrame(
        {
            "replicate": visits["replicate"].to_numpy()[rows],
            "problem": visits["problem"].to_numpy()[rows],
            "last_competitive": last,
            "window": last / found.length,
        }
    )


def _window(run: pd.DataFrame) -> dict[str, float]:
    epochs, rates, scores = ints(run, "epoch"), floats(run, "flip_rate"), floats(run, "pass_at_1")
    measured = np.isfinite(scores)
    drop = _drop(scores[measured], epochs[measured])
    known = np.isfinite(rates)
    rates, epochs = rates[known], epochs[known]
    window = dict.fromkeys(WINDOW, np.nan) | {"fr_peak": rates.max(initial=0.0), "drop": drop}
    if window["fr_peak"] > 0:
        peak = int(rates.argmax())
        collapse = _first_for_good((rates < rates[peak] / 2)[peak:], epochs[peak:])
        window |= {"peak": float(epochs[peak]), "collapse": collapse, "lead": drop - collapse}
    return window


def _drop(scores: Floats, epochs: Ints) -> float:
    low = scores <= np.maximum.accumulate(scores) - DROP + ROUNDING
    return _first_for_good(low, epochs)


def _first_for_good(holds: Bools, epochs: Ints) -> float:
    """First epoch from which a condition holds to the end, NaN if there is none."""
    broken = np.flatnonzero(~holds)
    first = int(broken[-1]) + 1 if len(broken) else 0
    return float(epochs[first]) if first < len(holds) else np.nan
