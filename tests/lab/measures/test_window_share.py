import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.dynamics import run_windows, window_share, window_width
from lab.measures.fate import fates


def dynamics(*rates: list[float]) -> pd.DataFrame:
    """FR per replicate and epoch from 1; epoch 0 is before training."""
    rows = [
        {"replicate": r, "epoch": e, "progress": e / len(own), "flip_rate": rate, "pass_at_1": 0.5}
        for r, own in enumerate(rates)
        for e, rate in enumerate([np.nan, *own])
    ]
    return pd.DataFrame(rows)


def test_share_of_runs_between_peak_and_collapse():
    table = dynamics([0.2, 0.8, 0.5, 0.1], [0.8, 0.1, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0])
    shares = window_share(table, run_windows(table))
    # Run 0 from epoch 2 to before 4, run 1 at epoch 1, run 2 never flipped.
    assert list(shares["epoch"]) == [1, 2, 3, 4]
    np.testing.assert_allclose(shares["share"], [1 / 3, 1 / 3, 1 / 3, 0])
    assert list(shares["n"]) == [3] * 4
    np.testing.assert_allclose(shares["progress"], [0.25, 0.5, 0.75, 1])


def test_a_window_without_collapse_stays_open():
    table = dynamics([0.2, 0.8, 0.7, 0.6])
    assert list(window_share(table, run_windows(table))["share"]) == [0, 1, 1, 1]


def test_windows_of_another_run_are_refused():
    table = dynamics([0.2, 0.8], [0.1, 0.1])
    with pytest.raises(UserError, match="no window of replicate 1"):
        window_share(table, run_windows(dynamics([0.2, 0.8])))


def test_width_is_the_mean_over_the_wanted_problems(make_visits):
    lost = [0.6] * 4 + [0.0] * 7
    late = [0.6] * 6 + [0.0] * 5
    kept = [0.9] * 11
    visits = pd.DataFrame(make_visits([[lost, late, kept]]))
    table = window_width(visits, fates(visits))
    assert table["n_problems"].item() == 2
    assert table["window"].item() == pytest.approx((0.3 + 0.5) / 2)
    everyone = window_width(visits, fates(visits), ["Degraded", "Stable Always Right"])
    assert everyone["window"].item() == pytest.approx((0.3 + 0.5 + 1) / 3)
