"""Every arm at its own best setting, chosen without the replicates that it is judged by.

The best of several settings looks better than it is on the replicates that chose it, the more so
the more settings there are. So the replicates are cut into two halves: each half is judged at the
setting that was best on the other half. The chosen settings may differ between the halves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.columns import ints
from sim.frames import done, equal, groups, mean, where


def own_best(rows: pd.DataFrame, over: Sequence[str], metric: str) -> pd.DataFrame:
    """The rows of every arm at its best settings.

    Args:
        rows: of `run_sweep`, one row per setting, arm and replicate; failed ones do not count.
        over: columns of the settings to choose from.
        metric: what is highest at the best; the mean over replicates decides.

    Returns:
        Rows of the input, by arm and then replicate, one each, with the settings that were chosen
        for it. With one replicate there is no other half, and its own best is taken.
    """
    rows = done(rows)
    # Neighbours go to different halves, so that any trend in the replicates is shared out.
    half = np.searchsorted(np.unique(ints(rows, "replicate")), ints(rows, "replicate")) % 2
    parts = []
    for (arm,), _ in groups(rows, ["arm"]):
        of_arm = equal(rows, "arm", arm)
        own = where(rows, of_arm)
        judged = [_judged(own, half[of_arm], which, over, metric) for which in (0, 1)]
        parts.append(pd.concat(judged).sort_values("replicate", kind="stable"))
    return pd.concat(parts, ignore_index=True) if parts else rows


def best_setting(rows: pd.DataFrame, over: Sequence[str], metric: str) -> tuple[object, ...]:
    """The setting with the highest mean of one arm's rows; the first of equals."""
    means = {key: mean(part, metric) for key, part in groups(rows, over)}
    return max(means, key=lambda key: (not np.isnan(means[key]), means[key]))


def _judged(
    own: pd.DataFrame, half: NDArray[np.intp], which: int, over: Sequence[str], metric: str
) -> pd.DataFrame:
    choosing = where(own, half != which)
    best = best_setting(choosing if len(choosing) else own, over, metric)
    at = [equal(own, name, value) for name, value in zip(over, best, strict=True)]
    return where(own, np.all([*at, half == which], axis=0))
