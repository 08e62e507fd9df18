"""Estimates as text: a mean and its standard deviation, an interval, a paired difference."""

from __future__ import annotations

import math

from lab.stats.paired import Estimate

_MOST_DIGITS = 10
_SHOWN = 0.05
"""A difference whose interval lies within this of zero is shown as 0.0, without a sign."""


def mean_sd(
    mean: float, sd: float = math.nan, digits: int = 1, *, signed: bool = False, missing: str = ""
) -> str:
    """Return `12.3 ± 0.4`, without the standard deviation where it is NaN.

    Args:
        mean: `missing` is returned where it is NaN.
        sd: standard deviation of single replicates.
        digits: after the point, of both.
        signed: write a sign before a positive mean, too.
        missing: text for a mean that was not measured.
    """
    if math.isnan(mean):
        return missing
    return f"{mean:{'+' if signed else ''}.{digits}f}{plus_minus(sd, digits)}"


def plus_minus(sd: float, digits: int = 1) -> str:
    """Return ` ± 0.4`; empty where the standard deviation is NaN, as for a single replicate."""
    return "" if math.isnan(sd) else f" ± {sd:.{digits}f}"


def with_interval(mean: float, low: float, high: float, digits: int = 1) -> str:
    """Return `+1.0 [+0.2, +1.8]`, a difference and its interval.

    An interval that excludes zero has as many more digits as it takes to show that.
    """
    digits = _digits(low, high, digits)
    return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def interval(low: float, high: float, *, signed: bool = True) -> str:
    """Return `95 % interval +0.2 to +1.8`; `no interval` where a bound is NaN."""
    if math.isnan(low) or math.isnan(high):
        return "no interval"
    sign, digits = ("+", _digits(low, high)) if signed else ("", 1)
    return f"95 % interval {low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def interval_of(value: Estimate, noun: str, *, signed: bool = True) -> str:
    """Return the interval with what it rests on: `95 % interval +0.2 to +1.8, 3 pairs`.

    Args:
        value: the estimate.
        noun: one of what was counted, such as `pair`.
        signed: write a sign before positive bounds, too.
    """
    count = counted(value.n, noun)
    if not value.has_interval:
        return f"no interval from {count}"
    return f"{interval(value.low, value.high, signed=signed)}, {count}"


def difference(value: Estimate) -> str:
    """Return a paired difference in Markdown, bold where its interval excludes zero.

    Empty where nothing was measured, and without an interval for a single pair.
    """
    if value.n == 0:
        return ""
    if not value.has_interval:
        return f"{value.mean:+.1f} (one pair)"
    if max(abs(value.low), abs(value.high)) < _SHOWN:
        return "0.0"
    text = with_interval(value.mean, value.low, value.high)
    return text if value.within_noise else f"**{text}**"


def _digits(low: float, high: float, digits: int = 1) -> int:
    """Digits with which no bound of an interval that excludes zero reads as zero."""
    nearest = min(abs(low), abs(high)) if low * high > 0 else 0.0
    return next((more for more in range(digits, _MOST_DIGITS) if round(nearest, more)), digits)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 pair` or `3 pairs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
