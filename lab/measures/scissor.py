"""The scissor: wrong labels gather votes while the correct answer stops winning them.

docs/method.md, section 11; paper appendix F, the figure's parts
a (`below_half`), b (`survival`) and c (`wins`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.columns import ROUNDING, Floats, flags, floats, group_mean, ints, require
from lab.measures.fate import FATES, histories, of_fate

THIRDS = 3
PAPER_FATES = ("Degraded",)
"""The problems that the paper's figure follows."""

NEEDED = (
    "replicate",
    "problem",
    "visit",
    "label",
    "match_rate",
    "label_accuracy",
    "label_correct",
)
"""Columns of the visits that `scissor` reads."""
_FATES_NEEDED = ("replicate", "problem", "fate")


def scissor(
    visits: pd.DataFrame, fates: pd.DataFrame, wanted: Collection[str] = PAPER_FATES
) -> pd.DataFrame:
    """Wrong labels' match rates and correct labels of some fates, per third of the visits.

    The visits of a problem are cut into three parts by their number, visit 0 left out; where three
    does not divide it, the earlier parts are the longer ones. The match rate of the wrong label in
    a part is the mean over those visits whose label is a wrong answer. A problem without such a
    visit in a part has no wrong label there: it counts neither in `below_half` nor in `survival`.

    Args:
        visits: a trace's visits; problems without a known true answer are left out.
        fates: from `lab.fates`.
        wanted: names out of `lab.measures.fate.FATES`; the paper's figure takes Degraded.

    Returns:
        One row per replicate and third (1, 2, 3): `n_problems`; `n_wrong`, those of them with a
        wrong label in this third; `below_half`, the share of these whose wrong label's mean match
        rate is below 0.5; `survival`, 1 - the mean of these match rates; `visits` and `wins`,
        visits per problem and those at which the correct answer is the label. All as shares or
        counts of visits, NaN where no problem is left to take a mean of.

    Raises:
        UserError: a column is missing, or a visit is there twice.
        ValueError: a wanted fate does not exist.
    """
    require(visits, NEEDED, "scissor")
    require(fates, _FATES_NEEDED, "scissor")
    if unknown := sorted(set(wanted) - set(FATES)):
        raise ValueError(f"{', '.join(unknown)}: not among {', '.join(FATES)}")
    known = np.isfinite(floats(visits, "label_accuracy"))
    found = histories(visits, known & of_fate(visits, fates, wanted))
    rows, n_histories = found.order, len(found.start)
    history = np.repeat(np.arange(n_histories), found.length)
    place = np.arange(len(rows)) - np.repeat(found.start, found.length)
    # One cell per history and third, in that order.
    cell = history * THIRDS + place * THIRDS // np.repeat(found.length, found.length)
    cells = _per_cell(visits.take(rows), cell, n_histories * THIRDS)
    replicates = np.unique(ints(visits, "replicate"))
    own = np.searchsorted(replicates, ints(visits, "replicate")[rows[found.start]])
    group = np.repeat(own * THIRDS, THIRDS) + np.tile(np.arange(THIRDS), n_histories)
    return _per_third(cells, group, replicates)


def _per_cell(visits: pd.DataFrame, cell: NDArray[np.intp], n_cells: int) -> dict[str, Floats]:
    """(cells,) match rate of the wrong label, visits, and visits won."""
    correct = flags(visits, "label_correct")
    # Without a label nothing is wrong yet: that is no wrong label with a match rate of 0.
    wrong = ~correct & (ints(visits, "label") >= 0)
    rate = np.where(wrong, floats(visits, "match_rate"), np.nan)
    return {
        "wrong": group_mean(rate, cell, n_cells),
        "visits": np.bincount(cell, minlength=n_cells).astype(np.float64),
        "wins": np.bincount(cell[correct], minlength=n_cells).astype(np.float64),
    }


def _per_third(
    cells: dict[str, Floats], group: NDArray[np.intp], replicates: NDArray[np.int64]
) -> pd.DataFrame:
    """Means over the problems of each replicate and third."""
    wrong, n_groups = cells["wrong"], len(replicates) * THIRDS
    has_wrong = np.isfinite(wrong)
    below = np.where(has_wrong, wrong < 0.5 - ROUNDING, np.nan)
    return pd.DataFrame(
        {
            "replicate": np.repeat(replicates, THIRDS),
            "third": np.tile(np.arange(1, THIRDS + 1), len(replicates)),
            "n_problems": np.bincount(group, minlength=n_groups),
            "n_wrong": np.bincount(group[has_wrong], minlength=n_groups),
            "below_half": group_mean(below, group, n_groups),
            "survival": 1 - group_mean(wrong, group, n_groups),
            "visits": group_mean(cells["visits"], group, n_groups),
            "wins": group_mean(cells["wins"], group, n_groups),
        }
    )
