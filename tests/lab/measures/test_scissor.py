import numpy as np
import pandas as pd
import pytest

from lab.measures.problems import scissor


def outcome(*rows):
    """Fates from (replicate, problem, fate)."""
    return pd.DataFrame(rows, columns=["replicate", "problem", "fate"])


def trace(make_visits, correct, rates, **columns):
    """Visits from (R, N, 1 + visits) of whether the label is right and its match rate."""
    correct, rates = np.asarray(correct, bool), np.asarray(rates, float)
    columns |= {"label": np.where(correct, 3, 5), "label_correct": correct, "match_rate": rates}
    return pd.DataFrame(make_visits(np.where(correct, 0.6, 0.2), **columns))


# Visit 0, then nine visits in thirds of three.
RIGHT = [1, 1, 0, 1, 0, 0, 1, 0, 0, 0]
RATES = [0.9, 0.6, 0.4, 0.6, 0.5, 0.7, 0.6, 0.8, 0.9, 1.0]
OTHER = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
OTHER_RATES = [0.9, 0.5, 0.6, 0.7, 0.3, 0.4, 0.5, 0.9, 0.9, 0.9]


def test_shares_survival_and_wins_by_hand(make_visits):
    visits = trace(make_visits, [[RIGHT, OTHER]], [[RATES, OTHER_RATES]])
    both = outcome((0, 0, "Degraded"), (0, 1, "Degraded"))
    found = scissor(visits.sample(frac=1, random_state=1), both)
    assert found["third"].tolist() == [1, 2, 3]
    # The second problem has no wrong label in the last third: it counts for nothing there.
    # Mean rates of the wrong labels: 0.4 and 0.6; 0.6 and 0.4; 0.9.
    assert found["below_half"].tolist() == [0.5, 0.5, 0.0]
    assert found["survival"].to_numpy() == pytest.approx([0.5, 0.5, 0.1])
    assert found["wins"].tolist() == [1.0, 0.5, 1.5]


def test_only_degraded_problems_count(make_visits):
    visits = trace(make_visits, [[RIGHT, OTHER]], [[RATES, OTHER_RATES]])
    one = outcome((0, 0, "Degraded"), (0, 1, "Always Wrong"))
    assert scissor(visits, one)["survival"].to_numpy() == pytest.approx([0.6, 0.4, 0.1])
    other = scissor(visits, outcome((0, 0, "Always Wrong"), (0, 1, "Degraded")))
    assert other["survival"].to_numpy()[:2] == pytest.approx([0.4, 0.6])
    assert other[["below_half", "survival"]].iloc[2].isna().all()
    assert other["wins"].tolist() == [0, 0, 3]


def test_no_label_is_no_wrong_label_and_unknown_truth_is_left_out(make_visits):
    visits = trace(make_visits, [[OTHER, OTHER]], [[OTHER_RATES, OTHER_RATES]])
    fates = outcome((0, 0, "Degraded"), (0, 1, "Degraded"))
    visits.loc[(visits["problem"] == 0) & visits["visit"].between(1, 3), "label"] = -1
    visits.loc[visits["problem"] == 1, "label_accuracy"] = np.nan
    found = scissor(visits, fates)
    assert found["survival"].isna().tolist() == [True, False, True]
