"""How well simulated runs rank the arms of real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lab.columns import floats, groups, select


def rankings(table: pd.DataFrame) -> pd.DataFrame:
    """Return how well each prediction ranks the arms by final pass@1, at each learning rate.

    Args:
        table: from `lab.agreement`.

    Returns:
        One row per task, learning rate and prediction with numbers of its own: task, lr,
        prediction, arms (their number) and tau (Kendall's tau-b between predicted and real final
        pass@1: 1 for the same order, -1 for the opposite one, NaN for fewer than two arms).
    """
    both = np.isfinite(floats(table, "real") + floats(table, "predicted"))
    rows = []
    for key, part in groups(select(table, both), ["task", "lr", "prediction"]):
        tau = kendall_tau(floats(part, "predicted"), floats(part, "real"))
        rows.append([*key, len(part), tau])
    return pd.DataFrame(rows, columns=["task", "lr", "prediction", "arms", "tau"])


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's tau-b of two series; NaN where one is constant."""
    from scipy.stats import kendalltau  # its import takes most of a second

    return float(np.asarray(kendalltau(first, second))[0])
