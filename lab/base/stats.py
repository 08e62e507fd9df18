"""Means and paired differences over replicates with their intervals, as text, and AUROC.

Replicates are the unit: one replicate's difference between two arms is one number, whatever is
correlated inside the replicate. Every difference has one interval, the t-interval of its mean over
these numbers (docs/method.md, section 12).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from guard_core.config import ROUNDING
from lab.base.columns import Bools, Floats, Ints

LEVEL = 0.95
"""Coverage of the intervals."""
_PAIRED = ["arm", "metric", "mean", "sd", "low", "high", "n", "verdict"]
_SHOWN = 0.05
"""A difference whose interval lies within this of zero is shown as 0.0, without a sign."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over replicates with its spread."""

    mean: float
    sd: float
    """Spread of single replicates, n-1; NaN for fewer than two."""
    low: float
    high: float
    """95 % t-interval of the mean; NaN for fewer than two replicates."""
    n: int
    """Replicates, or pairs of them; those with NaN do not count."""

    @property
    def has_interval(self) -> bool:
        """There are at least two replicates."""
        return self.n >= 2

    @property
    def within_noise(self) -> bool:
        """The interval contains 0, or there is none: no difference was shown."""
        return not self.has_interval or (self.low <= ROUNDING and self.high >= -ROUNDING)

    def shows(self, higher: str = "above zero", lower: str = "below zero") -> str:
        """Return what a paired difference shows, in words."""
        if self.n == 0:
            return "not measured"
        if not self.has_interval:
            return "one pair shows nothing"
        if self.within_noise:
            return "within noise"
        return f"{higher if self.mean > 0 else lower} beyond noise"

    @property
    def verdict(self) -> str:
        """`shows`, with the number of pairs."""
        return f"{self.shows()} ({self.n} pairs)" if self.has_interval else self.shows()

    def __str__(self) -> str:
        """Return the mean and the standard deviation, `12.3 ± 0.4`."""
        return mean_sd(self.mean, self.sd)


def estimate(values: pd.Series | NDArray[np.float64], level: float = LEVEL) -> Estimate:
    """Mean, spread and t-interval of the mean at a level; NaN values are left out."""
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    n = len(numbers)
    mean = float(numbers.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, n)
    sd = float(numbers.std(ddof=1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * sd / math.sqrt(n)
    return Estimate(mean, sd, mean - half, mean + half, n)


def paired(first: pd.Series, second: pd.Series) -> Estimate:
    """The mean of first - second over the replicates that both have, by which they are indexed."""
    return estimate(differences(first, second))


def differences(first: pd.Series, second: pd.Series) -> pd.Series:
    """First - second, per replicate that both have and where neither is NaN."""
    common = first.index.intersection(second.index)
    numbers = first.loc[common].to_numpy(float) - second.loc[common].to_numpy(float)
    measured = np.isfinite(numbers)
    return pd.Series(numbers[measured], common[measured])


def paired_table(metrics: pd.DataFrame, against: str) -> pd.DataFrame:
    """Every arm minus one arm, for every metric: a column of a row per (arm, replicate).

    Returns:
        One row per other arm and metric: arm, metric, mean, sd, low, high, n, verdict.
    """
    by_arm = {name: part.droplevel("arm") for name, part in metrics.groupby("arm", sort=False)}
    base = by_arm.pop(against)
    rows = []
    for arm, values in by_arm.items():
        for metric in metrics.columns:
            gap = paired(pd.Series(values[metric]), pd.Series(base[metric]))
            rows.append({"arm": arm, "metric": metric, **asdict(gap), "verdict": gap.verdict})
    return pd.DataFrame(rows, columns=_PAIRED)


def contrast_table(metrics: pd.DataFrame) -> pd.DataFrame:
    """Every difference between two arms, for every metric as in `paired_table`.

    Returns:
        The columns of `paired_table` and, behind the arm, against: the arm that is taken off, which
        comes earlier in `metrics`.
    """
    arms, parts = list(metrics.index.unique("arm")), []
    for place, against in enumerate(arms[:-1]):
        later = metrics[metrics.index.isin(arms[place:], level="arm")]
        parts.append(paired_table(later, against).assign(against=against))
    columns = [_PAIRED[0], "against", *_PAIRED[1:]]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return table.reindex(columns=columns)


def mean_sd(mean: float, sd: float = math.nan, digits: int = 1, *, signed: bool = False) -> str:
    """Return `12.3 ± 0.4`, without the deviation where it is NaN; empty for a mean that is."""
    if math.isnan(mean):
        return ""
    return f"{mean:{'+' if signed else ''}.{digits}f}{plus_minus(sd, digits)}"


def plus_minus(sd: float, digits: int = 1) -> str:
    """Return ` ± 0.4`; empty where the standard deviation is NaN, as for a single replicate."""
    return "" if math.isnan(sd) else f" ± {sd:.{digits}f}"


def with_interval(mean: float, low: float, high: float) -> str:
    """Return `+1.0 [+0.2, +1.8]`, a difference and its interval; without what is NaN of both.

    An interval that excludes zero has as many more digits as it takes to show that.
    """
    if math.isnan(low):
        return mean_sd(mean, signed=True)
    digits = _digits(low, high)
    return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def interval(low: float, high: float, *, signed: bool = True) -> str:
    """Return `95 % interval +0.2 to +1.8`; `no interval` where a bound is NaN."""
    if math.isnan(low) or math.isnan(high):
        return "no interval"
    sign, digits = ("+", _digits(low, high)) if signed else ("", 1)
    return f"95 % interval {low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def interval_of(value: Estimate, noun: str, *, signed: bool = True) -> str:
    """Return the interval with what it rests on: `95 % interval +0.2 to +1.8, 3 pairs`."""
    count = counted(value.n, noun)
    if not value.has_interval:
        return f"no interval from {count}"
    return f"{interval(value.low, value.high, signed=signed)}, {count}"


def difference(value: Estimate, *, starred: bool = False) -> str:
    """Return a paired difference in Markdown, bold (or starred) where its interval excludes zero.

    Empty where nothing was measured, and without an interval for a single pair.
    """
    if value.n == 0:
        return ""
    if not value.has_interval:
        return f"{value.mean:+.1f} (one pair)"
    if max(abs(value.low), abs(value.high)) < _SHOWN:
        return "0.0"
    text = with_interval(value.mean, value.low, value.high)
    if value.within_noise:
        return text
    return f"{text}*" if starred else f"**{text}**"


def _digits(low: float, high: float) -> int:
    """Digits with which no bound of an interval that excludes zero reads as zero; usually 1."""
    nearest = min(abs(low), abs(high)) if low * high > 0 else 0.0
    return next((digits for digits in range(1, 10) if round(nearest, digits)), 1)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 pair` or `3 pairs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some_of(count: int, total: int) -> str:
    """Return ` (2 of 3)`, which stands behind a mean over some of its values; empty if of all."""
    return "" if count == total else f" ({count} of {total})"


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


def auroc_of_runs(score: Floats, lost: Bools, replicate: Ints, weights_BR: Ints) -> Floats:
    """AUROC over the pairs of a lost and a kept problem of one replicate.

    It is the chance that the lost problem scores above the kept one, a tie counted one half: the
    area under the ROC curve by the rank formula (Mann-Whitney).

    Args:
        score: (problems,) the higher, the likelier lost; with a NaN every AUROC is NaN.
        lost: (problems,) bool.
        replicate: (problems,) 0 to R-1.
        weights_BR: times that each replicate is there, as a bootstrap draws them. One that is
            drawn twice is two runs, whose problems do not meet.

    Returns:
        (B,) shares from 0 to 1, NaN where there is no pair.
    """
    n_replicates = weights_BR.shape[-1]
    wins_R, pairs_R = np.zeros(n_replicates), np.zeros(n_replicates)
    for run in range(n_replicates):
        in_run = replicate == run
        kept, fallen = np.sort(score[in_run & ~lost]), score[in_run & lost]
        below, not_above = (np.searchsorted(kept, fallen, side) for side in ("left", "right"))
        wins_R[run], pairs_R[run] = (below + not_above).sum() / 2, len(kept) * len(fallen)
    if np.isnan(score).any():
        wins_R[:] = np.nan
    total = weights_BR @ pairs_R
    return np.where(total > 0, weights_BR @ wins_R / np.where(total > 0, total, 1.0), np.nan)
