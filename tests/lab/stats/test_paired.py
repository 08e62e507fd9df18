import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lab.base.stats import differences, estimate, paired


def series(values, index=None):
    return pd.Series(values, range(len(values)) if index is None else index, dtype=float)


def test_the_interval_is_that_of_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 20), rng.normal(0, 1, 20)
    found = paired(series(first), series(second))
    result = stats.ttest_rel(first, second)
    low, high = result.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    gap = first - second
    assert (found.mean, found.sd, found.n) == pytest.approx((gap.mean(), gap.std(ddof=1), 20))
    assert found.within_noise == (result.pvalue > 0.05)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([5.0, 5.1, 4.9], "above zero beyond noise (3 pairs)"),
        ([-5.0, -5.1, -4.9], "below zero beyond noise (3 pairs)"),
        ([1.0, -1.0], "within noise (2 pairs)"),
        ([0.0, 0.0, 0.0], "within noise (3 pairs)"),
        ([1e-14, 1e-14, 1e-14], "within noise (3 pairs)"),
        ([2.0, 2.0], "above zero beyond noise (2 pairs)"),
        ([7.0], "one pair shows nothing"),
        ([], "not measured"),
    ],
)
def test_verdicts(values, verdict):
    assert estimate(series(values)).verdict == verdict


def test_pairs_are_made_by_replicate_and_need_both_numbers():
    first = series([1, 2, 3, np.nan], index=[0, 2, 5, 6])
    second = series([10, 20, 30, 40], index=[6, 5, 2, 1])
    found = differences(first, second)
    assert found.to_dict() == {2: -28.0, 5: -17.0}
