"""Width of the extinction window: over runs epoch by epoch, and over problems."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from lab.columns import floats, require
from lab.errors import UserError
from lab.measures.fate import of_fate
from lab.measures.scissor import PAPER_FATES
from lab.measures.window import competitive_windows


def window_share(dynamics: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Share of the replicates between the peak of FR and its collapse.

    Args:
        dynamics: from `lab.measures.dynamics.dynamics`, of one arm.
        windows: from `lab.measures.window.run_windows`, of the same arm. A window that never
        collapsed is
            open to the end; a run without any flip never has one.

    Returns:
        One row per epoch from 1 on: epoch, progress, share (0 to 1; of the replicates whose window
        is open, from the peak's epoch up to before the collapse's), n (replicates).

    Raises:
        UserError: a column is missing, or a replicate of the dynamics has no window.
    """
    require(dynamics, ("replicate", "epoch", "progress"), "extinction window")
    require(windows, ("peak", "collapse"), "extinction window")
    lacking = sorted(set(dynamics["replicate"]) - set(windows.index))
    if lacking:
        raise UserError(
            f"extinction window: no window of replicate {lacking[0]}; give both tables of one run"
        )
    rows = dynamics.take(np.flatnonzero(dynamics["epoch"].to_numpy() > 0))
    own = windows.loc[rows["replicate"]]
    peak, collapse = floats(own, "peak"), floats(own, "collapse")
    epoch = floats(rows, "epoch")
    # Any comparison with NaN is false: no peak is no window, no collapse is an open end.
    is_open = (epoch >= peak) & ~(epoch >= collapse)
    grouped = rows.assign(share=is_open.astype(np.float64)).groupby("epoch", as_index=False)
    return grouped.agg(progress=("progress", "mean"), share=("share", "mean"), n=("share", "count"))


def window_width(
    visits: pd.DataFrame, fates: pd.DataFrame, wanted: Collection[str] = PAPER_FATES
) -> pd.DataFrame:
    """Share of its visits up to which the correct answer of a problem stayed competitive.

    Args:
        visits: a trace's visits.
        fates: from `lab.fates`.
        wanted: names out of `lab.measures.fate.FATES`.

    Returns:
        One row per replicate that has such problems: replicate, window (mean over them, 0 to 1),
        n_problems.

    Raises:
        UserError: a column is missing.
    """
    windows = competitive_windows(visits)
    own = windows.take(np.flatnonzero(of_fate(windows, fates, wanted)))
    grouped = own.groupby("replicate", as_index=False)
    return grouped.agg(window=("window", "mean"), n_problems=("window", "count"))
