import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.dynamics import run_windows, window_share, window_width


def run(flips, scores, replicate=0):
    columns = {"epoch": range(len(flips)), "flip_rate": flips, "pass_at_1": scores}
    return pd.DataFrame(columns).assign(replicate=replicate)


NAN = float("nan")


def test_peak_collapse_drop_and_lead():
    flips = [NAN, 0.1, 0.4, 0.3, 0.1, 0.25, 0.1, 0.0]
    scores = [0.50, 0.52, 0.55, 0.52, 0.56, 0.55, 0.53, 0.50]
    window = run_windows(run(flips, scores)).loc[0]
    assert (window["fr_peak"], window["peak"]) == (40, 2)
    # At epoch 4 it was below half of the peak, but not for good.
    assert window["collapse"] == 6
    # At epoch 3 it was 3 points below its maximum, but not for good.
    assert window["drop"] == 6 and window["lead"] == 0


def test_what_never_happened_is_nan():
    steady = run_windows(run([NAN, 0.3, 0.3], [0.5, 0.6, 0.6])).loc[0]
    assert (steady["fr_peak"], steady["peak"]) == (30, 1)
    assert np.isnan(steady[["collapse", "drop", "lead"]].to_numpy()).all()
    frozen = run_windows(run([NAN, 0.0, 0.0], [0.5, 0.4, 0.4])).loc[0]
    assert (frozen["fr_peak"], frozen["drop"]) == (0, 1)
    assert np.isnan(frozen[["peak", "collapse", "lead"]].to_numpy()).all()
    assert run_windows(run([NAN], [0.5])).isna().all(axis=None)  # before its first visit


def test_scores_may_be_measured_seldom_and_rows_in_any_order():
    seldom = run([NAN, 0.4, 0.1, 0.1, 0.1], [0.5, NAN, NAN, NAN, 0.3], replicate=7)
    never = run([NAN, 0.4, 0.4, 0.4, 0.4], [NAN] * 5, replicate=1)
    windows = run_windows(pd.concat([seldom, never]).iloc[::-1])
    assert windows.index.tolist() == [1, 7]
    assert windows.loc[7, ["collapse", "drop", "lead"]].tolist() == [2, 4, 2]
    assert np.isnan(windows.loc[1, "drop"])


def lost(*problems):
    return pd.DataFrame({"replicate": 0, "problem": problems, "fate": "Degraded"})


def test_competitive_window_is_a_share_of_the_visits(make_visits):
    accuracy = [[1.0, 0.9, 0.3, 0.1, 0.25, 0.2], [1.0] + [0.0] * 5, [0.0] * 5 + [1.0]]
    visits = pd.DataFrame(make_visits([accuracy])).sample(frac=1, random_state=0)
    for problem, share in enumerate((0.8, 0.0, 1.0)):
        assert window_width(visits, lost(problem))["window"].tolist() == [share]
    together = window_width(visits, lost(0, 1, 2))
    assert together["window"].item() == pytest.approx(0.6)


def test_competitive_window_without_visits_or_columns(make_visits):
    visits = pd.DataFrame(make_visits([[[0.5]]]))
    assert window_width(visits, lost(0)).empty
    with pytest.raises(UserError, match="missing columns correct_competitive"):
        window_width(visits.drop(columns="correct_competitive"), lost(0))


def rates(*flips):
    """FR per replicate and epoch from 1; epoch 0 is before training."""
    runs = [run([NAN, *own], 0.5, r) for r, own in enumerate(flips)]
    return pd.concat(runs).assign(progress=lambda table: table["epoch"] / len(flips[0]))


def test_share_of_runs_between_peak_and_collapse():
    table = rates([0.2, 0.8, 0.5, 0.1], [0.8, 0.1, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0])
    shares = window_share(table, run_windows(table))
    # Run 0 from epoch 2 to before 4, run 1 at epoch 1, run 2 never flipped.
    assert list(shares["epoch"]) == [1, 2, 3, 4]
    np.testing.assert_allclose(shares["share"], [1 / 3, 1 / 3, 1 / 3, 0])
    assert list(shares["n"]) == [3] * 4
    np.testing.assert_allclose(shares["progress"], [0.25, 0.5, 0.75, 1])


def test_a_window_without_collapse_stays_open_and_those_of_another_run_are_refused():
    table = rates([0.2, 0.8, 0.7, 0.6])
    assert list(window_share(table, run_windows(table))["share"]) == [0, 1, 1, 1]
    with pytest.raises(UserError, match="no window of replicate 1"):
        window_share(rates([0.2, 0.8], [0.1, 0.1]), run_windows(table))
