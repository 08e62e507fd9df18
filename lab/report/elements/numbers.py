"""Numbers with their standard deviations as elements of the page."""

from __future__ import annotations

import math

from lab.report.elements.html import Html, tag
from lab.stats.words import mean_sd, plus_minus


def mean_and_sd(mean: float, sd: float, digits: int = 1, missing: str = "not measured") -> Html:
    """Return a mean with its standard deviation in small print.

    Args:
        mean: `missing` is shown where it is NaN.
        sd: standard deviation; NaN for a single replicate.
        digits: after the point.
        missing: text for a mean that was not measured.
    """
    spread = "" if math.isnan(mean) else plus_minus(sd, digits)
    return tag(
        "span", mean_sd(mean, digits=digits, missing=missing), tag("span", spread, class_="spread")
    )
