import math

import pytest

from lab.base.stats import Estimate
from lab.compare.tables import Finding, Quantity
from lab.report import page as words


def part(mean, low, high, n=5, label="TotalDeg saved"):
    return Quantity(label, Estimate(mean, 1.0, low, high, n), "")


BETTER = part(2.0, 1.0, 3.0)
WORSE = part(-2.0, -3.0, -1.0)
NOISE = part(0.5, -1.0, 2.0)
ONE_PAIR = part(0.5, math.nan, math.nan, n=1)
NONE = part(math.nan, math.nan, math.nan, n=0)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((BETTER, BETTER), "TTRL-Guard does better than TTRL at matched effort"),
        ((WORSE, WORSE), "TTRL-Guard does worse than TTRL at matched effort"),
        ((NOISE, ONE_PAIR), "shows no difference beyond noise from"),
        ((BETTER, NOISE), "better in one number, with the other within noise, than"),
        ((WORSE, ONE_PAIR), "worse in one number, with the other within noise, than"),
        ((BETTER, WORSE), "better in one number and worse in the other than"),
        ((BETTER, NONE), "TTRL-Guard does better than"),
        ((BETTER, NOISE), "TotalDeg saved +2.0 points (95 % interval +1.0 to +3.0)"),
        ((BETTER, NOISE), "+0.5 points (95 % interval -1.0 to +2.0, within noise)"),
    ],
)
def test_outcome_with_its_numbers(parts, expected):
    assert expected in words.sentence(Finding("guard", "What", parts))
