"""The alarm's features: by hand, and independent of the truth and of later visits."""

import numpy as np
import pandas as pd
import pytest

from lab.alarm.features import TRIVIAL, features, votes_so_far
from lab.alarm.risk import fit_alarm
from lab.trace.schema import VISITS

TRUTH = [column.name for column in VISITS if column.needs_truth]


def truth_permuted(visits, seed=0):
    """Votes like those of the fixture under other true answers."""
    order = np.random.default_rng(seed).permutation(len(visits))
    return visits.assign(**{name: visits[name].to_numpy()[order] for name in TRUTH})


def test_features_by_hand(voted):
    accuracy = [[[0.75, 0.5, 0.25, 0.125], [1.0, 1.0, 1.0, 1.0]]]
    visits = voted(accuracy)
    visits["n_unparseable"] = [16, 0, 0, 16, 0, 0, 0, 0]
    visits["tie"] = [False, True] + [False] * 6
    found = features(votes_so_far(visits))
    wrong, right = found.iloc[0], found.iloc[1]
    assert wrong["mr_now"] == 0.875
    assert wrong["mr_mean"] == (0.75 + 0.5 + 0.75 + 0.875) / 4
    assert wrong["mr_change"] == 0.125
    # Least squares of .75 .5 .75 .875: (-1.5*.75 - .5*.5 + .5*.75 + 1.5*.875) / 5.
    assert wrong["mr_slope"] == pytest.approx(0.0625)
    assert (wrong["held"], wrong["moved"], right["held"], right["moved"]) == (0, 1, 1, 0)
    assert (wrong["flips"], wrong["since_flip"], right["since_flip"]) == (1, 1 / 3, 1)
    assert (wrong["fr"], wrong["ties"], wrong["unparseable"]) == (0.2, 0.25, 0.125)
    before = features(votes_so_far(visits).until(0))
    assert before["mr_slope"].tolist() == before["since_flip"].tolist() == [0, 0]


def test_slope_looks_back_five_visits_and_a_first_label_may_come_late(voted):
    accuracy = [[[1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]]]
    visits = voted(accuracy)
    visits.loc[visits["visit"] == 0, "label"] = -1
    found = features(votes_so_far(visits)).iloc[0]
    assert (found["mr_slope"], found["moved"]) == (0, 0)
    visits["label"] = -1
    assert features(votes_so_far(visits))["moved"].tolist() == [0]


def test_trivial_scores_point_at_low_match_rates_and_many_flips(voted):
    votes = votes_so_far(voted([[[0.75, 0.5, 0.25]]]))
    found = {name: score(votes).tolist() for name, score in TRIVIAL.items()}
    third = pytest.approx([1 / 3])
    assert found["mr"] == found["mr_first"] == [0.25]
    assert found["mr_mean"] == third
    assert (found["fr"], found["flips"], found["moved"]) == ([0.2], [1], [1])


@pytest.mark.parametrize("t", [1, 4, 9])
def test_nothing_reads_the_truth_or_a_later_visit(world, t):
    visits, found = world
    alarm = fit_alarm(visits, found, (1, 4, 9))
    risk = alarm.risk(visits, t)
    assert len(risk) == 240 and risk["risk"].between(0, 1).all()
    past = visits[visits["visit"] <= t]
    for other in (past, truth_permuted(visits), past.drop(columns=TRUTH)):
        pd.testing.assert_frame_equal(alarm.risk(other, t), risk)
    whole, cut = votes_so_far(visits).until(t), votes_so_far(past)
    pd.testing.assert_frame_equal(features(whole), features(cut))
    for score in TRIVIAL.values():
        assert score(whole).tolist() == score(cut).tolist()
    # A changed present must show, or the above says nothing.
    changed = visits.assign(match_rate=visits["match_rate"].where(visits["visit"] != t, 0.5))
    assert not alarm.risk(changed, t)["risk"].equals(risk["risk"])
