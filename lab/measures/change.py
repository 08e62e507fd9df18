"""Change of problems: initial against final label accuracy, by fate."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.columns import ROUNDING, Floats, Ints, floats, ints, require
from lab.measures.fate import FATES, fate_codes

_NEEDED = ("replicate", "problem", "ila", "fla", "fate")


def mean_change(fates: pd.DataFrame) -> pd.DataFrame:
    """Mean change of label accuracy of the problems of each fate.

    Args:
        fates: from `lab.fates`.

    Returns:
        One row per replicate and fate that has problems there: replicate, fate, change (mean of
        FLA - ILA, -1 to 1), n_problems.

    Raises:
        UserError: a column is missing.
    """
    require(fates, _NEEDED, "change per fate")
    replicates, place = np.unique(ints(fates, "replicate"), return_inverse=True)
    cell = place * len(FATES) + fate_codes(fates)
    size = len(replicates) * len(FATES)
    counts = np.bincount(cell, minlength=size)
    sums = np.bincount(cell, floats(fates, "fla") - floats(fates, "ila"), minlength=size)
    there = np.flatnonzero(counts)
    return pd.DataFrame(
        {
            "replicate": replicates[there // len(FATES)],
            "fate": np.array(FATES, object)[there % len(FATES)],
            "change": sums[there] / counts[there],
            "n_problems": counts[there],
        }
    )


def migration(fates: pd.DataFrame, n_bins: int = 10) -> pd.DataFrame:
    """Counts of problems on a grid of initial and final label accuracy.

    Args:
        fates: from `lab.fates`.
        n_bins: bins of equal width from 0 to 1, for ILA and FLA alike; 1 belongs to the last.

    Returns:
        One row per fate and cell of the grid that has problems: fate, ila and fla (means of its
        problems), share (percent of a replicate's problems, mean over the replicates), sd (over
        the replicates; NaN for one), n (replicates), n_problems (of all replicates).

    Raises:
        UserError: a column is missing.
    """
    require(fates, _NEEDED, "label migration")
    replicates, place = np.unique(ints(fates, "replicate"), return_inverse=True)
    grid = _bin(floats(fates, "ila"), n_bins) * n_bins + _bin(floats(fates, "fla"), n_bins)
    code, cell = np.unique(fate_codes(fates) * n_bins**2 + grid, return_inverse=True)
    counts_RC = np.zeros((len(replicates), len(code)))
    np.add.at(counts_RC, (place, cell), 1)
    shares_RC = 100 * counts_RC / counts_RC.sum(axis=1, keepdims=True)
    n_problems = counts_RC.sum(axis=0)
    ila, fla = (np.bincount(cell, floats(fates, name)) / n_problems for name in ("ila", "fla"))
    n = len(replicates)
    return pd.DataFrame(
        {
            "fate": np.array(FATES, object)[code // n_bins**2],
            "ila": ila,
            "fla": fla,
            "share": shares_RC.mean(axis=0),
            "sd": shares_RC.std(axis=0, ddof=1) if n > 1 else np.full(len(code), np.nan),
            "n": n,
            "n_problems": n_problems.astype(np.int64),
        }
    )


def _bin(accuracy: Floats, n_bins: int) -> Ints:
    return np.minimum((accuracy * n_bins + ROUNDING).astype(np.int64), n_bins - 1)
