"""Paired bootstrap over replicates; `lab.stats.paired` has t-intervals.

Replicates are the unit of resampling: one replicate's difference between two arms is one number,
whatever is correlated inside the replicate. The resamples depend on the seed and on the number of
pairs alone, so an interval does not change with the other arms or metrics.

Interval: expanded percentile (Hesterberg 2015, section 4.3). The plain percentile interval of a
mean is too narrow by sqrt((n-1)/n) and by the step from the normal to the t distribution; its tail
shares are therefore Phi(-sqrt(n/(n-1)) * t) in place of 2.5 %. It follows the skew of the data,
which the t-interval does not. It never leaves the range of the differences, so with a handful of
pairs it says little: a difference counts as shown only where both intervals exclude zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from lab.columns import Bools, Floats, Ints
from lab.errors import UserError
from lab.stats.paired import LEVEL, Estimate, differences, estimate

RESAMPLES = 2000
"""Resamples of an interval; fewer are refused."""
_COLUMNS_AT_ONCE = 512
"""Bounds the memory of one block of resampled means."""


def bootstrap(
    values: pd.Series | NDArray[np.float64], seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Mean of one number per replicate with its bootstrap interval; NaN values are left out.

    Args:
        values: (n,) for example the paired differences of two arms.
        resamples: at least `RESAMPLES`.

    Returns:
        `lab.stats.paired.Estimate` whose bounds come from the bootstrap; NaN bounds for n < 2.

    Raises:
        UserError: too few resamples.
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    low_C, high_C = _bounds(numbers[:, None], seed, resamples)
    t = estimate(numbers)
    return Estimate(t.mean, t.sd, float(low_C[0]), float(high_C[0]), t.n)


def paired_bootstrap(
    first: pd.Series, second: pd.Series, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of first - second over the replicates that both have, see `bootstrap`.

    Args:
        first: one number per replicate, indexed by replicate.
        second: the same for the other arm; replicates of one number share their seed.
        resamples: at least `RESAMPLES`.
    """
    return bootstrap(differences(first, second), seed, resamples)


def resample_counts(n: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return (resamples, n) times that each of n replicates is drawn, with replacement."""
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples)


def percentile_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of bootstrap values, undefined ones left out; NaN where none is defined."""
    defined = values[np.isfinite(values)]
    if not len(defined):
        return np.nan, np.nan
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def contrast_table(metrics: pd.DataFrame, seed: int, resamples: int = RESAMPLES) -> pd.DataFrame:
    """Every difference between two arms, for every metric, with both intervals.

    Args:
        metrics: one row per (arm, replicate), one column per metric.
        resamples: at least `RESAMPLES`.

    Returns:
        One row per pair of arms and metric, in the arms' order: arm, against (the earlier arm),
        metric, mean (arm - against), sd, low, high (bootstrap), t_low, t_high, n, verdict.

    Raises:
        UserError: too few resamples.
    """
    by_arm = {name: part.droplevel("arm") for name, part in metrics.groupby("arm", sort=False)}
    replicates = metrics.index.get_level_values("replicate").unique()
    keys, columns = [], []
    for against, arm in combinations(by_arm, 2):
        for metric in metrics.columns:
            gap = differences(pd.Series(by_arm[arm][metric]), pd.Series(by_arm[against][metric]))
            keys.append((arm, against, metric))
            columns.append(gap.reindex(replicates).to_numpy(float))
    if not keys:
        return pd.DataFrame(columns=list(_COLUMNS))
    gaps_RC = np.stack(columns, axis=1)
    low_C, high_C = _by_pattern(gaps_RC, seed, resamples)
    rows = [
        _row(key, gaps_RC[:, c], float(low_C[c]), float(high_C[c])) for c, key in enumerate(keys)
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


_COLUMNS = (
    *("arm", "against", "metric", "mean", "sd", "low", "high", "t_low", "t_high", "n"),
    "verdict",
)


def _row(
    key: tuple[str, ...], gaps_R: NDArray[np.float64], low: float, high: float
) -> list[object]:
    t = estimate(gaps_R)
    boot = Estimate(t.mean, t.sd, low, high, t.n)
    verdict = t.verdict if t.within_noise else boot.verdict
    return [*key, t.mean, t.sd, low, high, t.low, t.high, t.n, verdict]


def _by_pattern(
    gaps_RC: NDArray[np.float64], seed: int, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of every column, columns with the same missing replicates together."""
    measured_RC = np.isfinite(gaps_RC)
    patterns, group_C = np.unique(measured_RC, axis=1, return_inverse=True)
    bounds_2C = np.full((2, gaps_RC.shape[1]), np.nan)
    for g in range(patterns.shape[1]):
        columns = np.flatnonzero(group_C.reshape(-1) == g)
        for start in range(0, len(columns), _COLUMNS_AT_ONCE):
            at = columns[start : start + _COLUMNS_AT_ONCE]
            bounds_2C[:, at] = _bounds(gaps_RC[patterns[:, g]][:, at], seed, resamples)
    return bounds_2C[0], bounds_2C[1]


def _bounds(
    values_nC: NDArray[np.float64], seed: int, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bound of each column's mean; NaN for fewer than two rows."""
    if resamples < RESAMPLES:
        raise UserError(f"resamples = {resamples}: must be at least {RESAMPLES}")
    n, n_columns = values_nC.shape
    if n < 2:
        return np.full(n_columns, np.nan), np.full(n_columns, np.nan)
    # Equal differences must give exactly their value, so the spread is resampled, not the level.
    level_C = values_nC[0]
    rng = np.random.default_rng([seed, n])
    means_BC = resample_counts(n, resamples, rng) @ (values_nC - level_C) / n
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    tail = float(ndtr(-math.sqrt(n / (n - 1)) * t))
    low_C, high_C = level_C + np.quantile(means_BC, [tail, 1 - tail], axis=0)
    return low_C, high_C


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
