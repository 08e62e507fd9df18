import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.dynamics import competitive_windows, run_windows


def run(flips, scores, replicate=0):
    return pd.DataFrame(
        {
            "replicate": replicate,
            "epoch": range(len(flips)),
            "flip_rate": flips,
            "pass_at_1": scores,
        }
    )


NAN = float("nan")


def test_peak_collapse_drop_and_lead():
    flips = [NAN, 0.1, 0.4, 0.3, 0.1, 0.25, 0.1, 0.0]
    scores = [0.50, 0.52, 0.55, 0.52, 0.56, 0.55, 0.53, 0.50]
    window = run_windows(run(flips, scores)).loc[0]
    assert (window["fr_peak"], window["peak"]) == (0.4, 2)
    # At epoch 4 it was below half of the peak, but not for good.
    assert window["collapse"] == 6
    # At epoch 3 it was 3 points below its maximum, but not for good.
    assert window["drop"] == 6
    assert window["lead"] == 0


def test_what_never_happened_is_nan():
    steady = run_windows(run([NAN, 0.3, 0.3], [0.5, 0.6, 0.6])).loc[0]
    assert (steady["fr_peak"], steady["peak"]) == (0.3, 1)
    assert np.isnan(steady[["collapse", "drop", "lead"]].to_numpy()).all()
    frozen = run_windows(run([NAN, 0.0, 0.0], [0.5, 0.4, 0.4])).loc[0]
    assert (frozen["fr_peak"], frozen["drop"]) == (0, 1)
    assert np.isnan(frozen[["peak", "collapse", "lead"]].to_numpy()).all()


def test_scores_may_be_measured_seldom_and_rows_in_any_order():
    table = pd.concat(
        [
            run([NAN, 0.4, 0.1, 0.1, 0.1], [0.5, NAN, NAN, NAN, 0.3], replicate=7),
            run([NAN, 0.4, 0.4, 0.4, 0.4], [NAN] * 5, replicate=1),
        ]
    ).iloc[::-1]
    windows = run_windows(table)
    assert windows.index.tolist() == [1, 7]
    assert windows.loc[7, ["collapse", "drop", "lead"]].tolist() == [2, 4, 2]
    assert np.isnan(windows.loc[1, "drop"])


def test_competitive_window_is_a_share_of_the_visits(make_visits):
    accuracy = [
        [
            [1.0, 0.9, 0.3, 0.1, 0.25, 0.2],
            [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        ]
    ]
    found = competitive_windows(pd.DataFrame(make_visits(accuracy)).sample(frac=1, random_state=0))
    assert found["problem"].tolist() == [0, 1, 2]
    assert found["last_competitive"].tolist() == [4, 0, 5]
    assert found["window"].tolist() == [0.8, 0.0, 1.0]


def test_competitive_window_without_visits_or_columns(make_visits):
    visits = pd.DataFrame(make_visits([[[0.5]]]))
    assert competitive_windows(visits).empty
    with pytest.raises(UserError, match="missing columns correct_competitive"):
        competitive_windows(visits.drop(columns="correct_competitive"))
