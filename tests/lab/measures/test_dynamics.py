import numpy as np
import pandas as pd
import pytest

from guard_core import Route
from lab.measures.dynamics import dynamics, run_windows
from lab.measures.fate import fates


@pytest.fixture
def visits(make_visits):
    """One replicate, two problems, visits 0 to 2."""
    return pd.DataFrame(
        make_visits(
            [[[0.9, 0.8, 0.2], [0.1, 0.0, 0.6]]],
            flipped=[False, True, False, False, True, True],
            match_rate=[0.9, 0.8, 0.7, 0.5, 0.6, 0.7],
            flip_rate=[0, 0.2, 0.2, 0, 0.2, 0.4],
            route=[0, Route.STABLE, Route.SKIPPED, 0, Route.AT_RISK, Route.AT_RISK],
            weight=[1, 0.5, 1, 1, 0.7, 0.9],
            beta=[0, 0.1, 0, 0, 0.1, 0.3],
            n_minority=[0, 2, 0, 0, 0, 1],
            skipped=[False, False, True, False, False, False],
        )
    )


GUARDED = ("flip_rate", "weight", "beta", "skipped", "route_stable", "minority_share")


def test_means_over_the_problems_of_each_epoch(visits):
    table = dynamics(visits).set_index("epoch")
    assert table.loc[0, list(GUARDED)].isna().all(), "before training the guard has said nothing"
    assert table["progress"].tolist() == [0, 0.5, 1]
    first, second = table.loc[1], table.loc[2]
    assert first["flip_rate"] == 1.0
    assert second["flip_rate"] == 0.5 and second["mean_problem_flip_rate"] == pytest.approx(0.3)
    assert table["match_rate"].tolist() == pytest.approx([0.7, 0.7, 0.7])
    assert table["label_accuracy"].tolist() == pytest.approx([0.5, 0.4, 0.4])
    assert table["correct_vote_rate"].tolist() == [0.5, 0.5, 0.5]
    assert first["weight"] == pytest.approx(0.6)
    assert (first["weighted_share"], second["weighted_share"]) == (1.0, 0.5)
    assert second["beta"] == pytest.approx(0.15)
    assert (first["minority_share"], second["skipped"]) == (0.5, 0.5)
    assert (first["route_stable"], first["route_at_risk"]) == (0.5, 0.5)
    assert (second["route_skipped"], second["route_high_risk"]) == (0.5, 0.0)


def test_the_last_measured_score_of_an_epoch_counts(visits):
    columns = {"step": [3, 0, 2, 4], "epoch": [2, 0, 1, 2], "pass_at_1": [0.3, 0.1, 0.2, 0.4]}
    evals = pd.DataFrame(columns | {"maj_accuracy": [0.7, 0.5, np.nan, np.nan]})
    evals["replicate"] = 0
    table = dynamics(visits, evals)
    assert table["pass_at_1"].tolist() == [0.1, 0.2, 0.4]
    assert table["maj_accuracy"].fillna(-1).tolist() == [0.5, -1, 0.7]
    assert dynamics(visits)["pass_at_1"].isna().all()


def test_lost_problems_are_those_that_training_made_worse(make_visits):
    falling, wrong, right = [*[1.0] * 5, *[0.0] * 8], [0.1] * 13, [0.9] * 13
    visits = pd.DataFrame(make_visits([[falling, wrong, right]]))
    found = fates(visits)
    assert found["fate"].tolist() == ["Degraded", "Always Wrong", "Stable Always Right"]
    own = dynamics(visits, fates=found)["correct_vote_rate_lost"]
    assert own.tolist() == [1.0] * 5 + [0.0] * 8
    kept = found[found["fate"] != "Degraded"]
    assert dynamics(visits, fates=kept)["correct_vote_rate_lost"].isna().all()


def test_replicates_are_kept_apart_and_may_differ_in_length(make_visits):
    long = pd.DataFrame(make_visits([[[0.5] * 5]], replicates=[0]))
    short = pd.DataFrame(make_visits([[[1.0] * 3]], replicates=[2]))
    table = dynamics(pd.concat([short, long]))
    assert table["replicate"].tolist() == [0] * 5 + [2] * 3
    assert table["progress"].tolist() == [0, 0.25, 0.5, 0.75, 1, 0, 0.5, 1]


def test_a_last_epoch_that_is_not_whole_has_no_flip_rate(make_visits):
    flipped = np.array([[0, 1, 0, 1], [0, 1, 0, 0]], bool)
    visits = pd.DataFrame(make_visits([[[0.5] * 4] * 2], flipped=flipped))
    cut = visits[(visits["visit"] < 3) | (visits["problem"] == 0)]
    assert dynamics(visits)["flip_rate"].tolist()[1:] == [1.0, 0.0, 0.5]
    table = dynamics(cut)
    assert table["flip_rate"].tolist()[1:3] == [1.0, 0.0] and np.isnan(table["flip_rate"][3])
    assert table["match_rate"].notna().all()
    assert run_windows(table).loc[0, ["fr_peak", "peak", "collapse"]].tolist() == [100, 1, 2]
