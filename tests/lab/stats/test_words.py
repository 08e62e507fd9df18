import math
import re

import pytest

from lab.base.stats import (
    Estimate,
    difference,
    interval,
    interval_of,
    mean_sd,
    plus_minus,
    with_interval,
)

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1.26, 0.5), "1.3 ± 0.5"),
        ((1.26, NAN), "1.3"),
        ((NAN, NAN), ""),
        ((1.26, 0.5, 2), "1.26 ± 0.50"),
    ],
)
def test_mean_and_standard_deviation(given, expected):
    assert mean_sd(*given) == expected
    assert mean_sd(*given, signed=True) == (f"+{expected}" if expected else "")
    assert plus_minus(NAN) == ""


def test_intervals():
    assert interval(-1.0, 2.0) == "95 % interval -1.0 to +2.0"
    assert interval(1.0, 2.0, signed=False) == "95 % interval 1.0 to 2.0"
    assert interval(NAN, NAN) == "no interval" and with_interval(1.26, NAN, NAN) == "+1.3"
    three = Estimate(0.5, 1.0, -1.0, 2.0, 3)
    assert interval_of(three, "pair") == "95 % interval -1.0 to +2.0, 3 pairs"
    assert interval_of(Estimate(0.5, NAN, NAN, NAN, 1), "seed") == "no interval from 1 seed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Estimate(2.0, 1.0, 1.0, 3.0, 5), "**+2.0 [+1.0, +3.0]**"),
        (Estimate(0.5, 1.0, -1.0, 2.0, 5), "+0.5 [-1.0, +2.0]"),
        (Estimate(0.1, 0.1, 0.004, 0.2, 5), "**+0.100 [+0.004, +0.200]**"),
        (Estimate(0.5, NAN, NAN, NAN, 1), "+0.5 (one pair)"),
        (Estimate(NAN, NAN, NAN, NAN, 0), ""),
    ],
)
def test_a_difference_is_bold_beyond_noise(value, expected):
    assert difference(value) == expected


@pytest.mark.parametrize("nearest", [0.3, 0.04, 0.0006, 2e-8])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_bound_beyond_noise_reads_as_zero(nearest, sign):
    low, high = sorted((sign * nearest, sign * 0.5))
    for text in (with_interval((low + high) / 2, low, high), interval(low, high)):
        numbers = re.findall(r"[+-]\d+\.\d+", text)
        assert len(numbers) > 1 and all(float(number) * sign > 0 for number in numbers)
