"""AUROC of a score for lost against kept problems, with an interval over replicates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lab.columns import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class PairWins:
    """Pairs of a lost and a kept problem, counted by the replicates that they are from."""

    wins_RR: Floats
    """Pairs in which the lost problem of the row's replicate scores above the kept problem of the
    column's; a tie counts one half."""
    pairs_RR: Floats
    """All such pairs."""

    def among(self, group_R: ArrayLike) -> PairWins:
        """Only the pairs whose replicates are of one group."""
        group = np.asarray(group_R)
        same_RR = group[:, None] == group
        return replace(
            self,
            wins_RR=np.where(same_RR, self.wins_RR, 0.0),
            pairs_RR=np.where(same_RR, self.pairs_RR, 0.0),
        )

    def auroc(self, weights: ArrayLike) -> Floats:
        """AUROC over all pairs when replicate r is there `weights[..., r]` times.

        Args:
            weights: (..., R) whole numbers, as a bootstrap draws them; all 1 for the data itself.

        Returns:
            (...) shares from 0 to 1, NaN where there is no pair.
        """
        weights_BR = np.asarray(weights, np.float64)
        wins = ((weights_BR @ self.wins_RR) * weights_BR).sum(axis=-1)
        return _ratio(wins, ((weights_BR @ self.pairs_RR) * weights_BR).sum(axis=-1))

    def auroc_same_run(self, weights: ArrayLike) -> Floats:
        """AUROC over the pairs within one replicate.

        A replicate drawn twice is two runs here, and their problems do not meet.
        """
        weights_BR = np.asarray(weights, np.float64)
        wins = weights_BR @ np.diagonal(self.wins_RR)
        return _ratio(wins, weights_BR @ np.diagonal(self.pairs_RR))


def auroc(score: ArrayLike, lost: ArrayLike) -> float:
    """Chance that a lost problem scores above a kept one, ties counted one half.

    This is the area under the ROC curve by the rank formula (Mann-Whitney).

    Args:
        score: (problems,) the higher, the likelier lost.
        lost: (problems,) bool.

    Returns:
        A share from 0 to 1; NaN where nothing is lost, nothing kept, or a score is NaN.
    """
    scores = np.asarray(score, np.float64)
    one = np.zeros(len(scores), np.int64)
    return float(pair_wins(scores, np.asarray(lost, bool), one, 1).auroc([1.0]))


def pair_wins(score: Floats, lost: Bools, replicate: Ints, n_replicates: int) -> PairWins:
    """Compare every lost problem with every kept one, in O(R n log n).

    Args:
        score: (problems,) the higher, the likelier lost; with a NaN no pair has a winner, so that
            every AUROC is NaN.
        lost: (problems,) bool.
        replicate: (problems,) 0 to n_replicates-1.
        n_replicates: R.
    """
    own = replicate[lost]
    wins_RR = np.zeros((n_replicates, n_replicates))
    for kept_from in range(n_replicates):
        kept = np.sort(score[~lost & (replicate == kept_from)])
        below = np.searchsorted(kept, score[lost], side="left")
        not_above = np.searchsorted(kept, score[lost], side="right")
        wins_RR[:, kept_from] = np.bincount(own, (below + not_above) / 2, n_replicates)
    if np.isnan(score).any():
        wins_RR[:] = np.nan
    n_lost, n_kept = (np.bincount(replicate[who], minlength=n_replicates) for who in (lost, ~lost))
    return PairWins(wins_RR, np.outer(n_lost, n_kept).astype(np.float64))


def _ratio(wins: Floats, total: Floats) -> Floats:
    return np.where(total > 0, wins / np.where(total > 0, total, 1.0), np.nan)
