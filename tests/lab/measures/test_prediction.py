import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.base.stats import auroc_of_runs
from lab.figures.problems import auroc_curves
from lab.measures.fate import fates
from lab.measures.problems import SCORES, at_stake, features, flip_rate_in_time, lost_problem_auroc
from lab.trace.schema import VISITS

RIGHT, WRONG, W = 3, 5, 5
TRUTH = [column.name for column in VISITS if column.needs_truth]


@pytest.fixture(scope="module")
def voted(make_visits):
    """Two-answer votes from label accuracies (R, N, 1 + visits): the larger share is the label."""

    def table(accuracy, **columns):
        accuracy = np.asarray(accuracy, float)
        correct = accuracy >= 0.5
        flipped = np.diff(correct, axis=-1, prepend=correct[..., :1])
        n_visits = range(flipped.shape[-1])
        windows = [flipped[..., max(0, t - W + 1) : t + 1].sum(-1) for t in n_visits]
        columns |= {"label": np.where(correct, RIGHT, WRONG), "label_correct": correct}
        columns |= {"flipped": flipped, "flip_rate": np.stack(windows, axis=-1) / W}
        columns["match_rate"] = np.maximum(accuracy, 1 - accuracy)
        return pd.DataFrame(make_visits(accuracy, **columns))

    return table


@pytest.fixture(scope="module")
def world(voted):
    """Four runs of 60 problems: some fall from their start, others rise, all with noisy votes."""
    rng = np.random.default_rng(7)
    start = rng.uniform(0.3, 0.95, (4, 60, 1))
    falls = rng.random((4, 60, 1)) < 0.4
    t = np.arange(13)
    mean = np.where(falls, start - 0.05 * t, start + 0.02 * t).clip(0.05, 0.97)
    visits = voted(rng.binomial(64, mean) / 64)
    return visits, fates(visits)


def judged(visits, found):
    """The table indexed by visit and score."""
    table = lost_problem_auroc(visits, found, np.random.default_rng(0))
    return table.set_index(["visit", "score"])


def test_features_by_hand(voted):
    visits = voted([[[0.75, 0.75, 0.25, 0.125], [1.0, 1.0, 1.0, 1.0]]])
    visits["n_unparseable"] = [16, 0, 0, 16, 0, 0, 0, 0]
    visits["tie"] = [False, True] + [False] * 6
    found = pd.DataFrame({"replicate": 0, "problem": [0, 1], "fate": ["Degraded", "Learned"]})
    votes = at_stake(visits, found).votes
    wrong, right = features(votes, 3)
    assert wrong[:3] == pytest.approx([0.875, (0.75 * 3 + 0.875) / 4, 0.125])
    # Least squares of .75 .75 .75 .875: 1.5 * .125 / 5.
    assert wrong[3] == pytest.approx(0.0375)
    assert wrong[4:].tolist() == [0, 1, 1, 1 / 3, 0.2, 0.25, 0.125]
    assert right[4:].tolist() == [1, 0, 0, 1, 0, 0, 0]
    assert features(votes, 0)[:, [3, 7]].tolist() == [[0, 0], [0, 0]]


def test_at_stake_was_right_twice_at_first(voted):
    up, down, kept = [0.4] + [0.9] * 9, [0.9, 0.9, 0.6, 0.6] + [0.1] * 6, [0.9] * 10
    late = [0.9, 0.4] + [0.9] * 8
    visits = voted([[up, down, kept, late], [kept, kept, kept, down]])
    found = at_stake(visits.sample(frac=1, random_state=0), fates(visits))
    assert found.replicate_S.tolist() == [0, 0, 1, 1, 1, 1]
    assert found.lost_S.tolist() == [True, False, False, False, False, True]
    assert found.last_win_S.tolist() == [3, 9, 9, 9, 9, 3]


def test_the_table_is_the_mean_auroc_of_the_runs_and_is_drawn(world):
    visits, found = world
    table = judged(visits, found)
    assert table.index.tolist() == [(t, name) for t in (1, 3, 5, 8, 12) for name in SCORES]
    stake = at_stake(visits, found)
    now = visits[visits["visit"] == 5].set_index(["replicate", "problem"])["match_rate"]
    first = visits[(visits["visit"] <= 1) & visits["label_correct"]]
    both = first.groupby(["replicate", "problem"]).size() == 2
    score_S = 1 - now[both[both].index].to_numpy()
    runs = [stake.replicate_S == r for r in range(4)]
    pairs = np.array([stake.lost_S[r].sum() * (~stake.lost_S[r]).sum() for r in runs])
    each = auroc_of_runs(score_S, stake.lost_S, stake.replicate_S, np.eye(4, dtype=int))
    row = table.loc[(5, "mr")]
    assert row["auroc"] == pytest.approx(pairs @ each / pairs.sum())
    assert row["low"] <= row["auroc"] <= row["high"]
    assert (row["n_lost"], row["n_kept"]) == (stake.lost_S.sum(), (~stake.lost_S).sum())
    curves = [c for c in auroc_curves(table.reset_index()).data if c.mode == "lines+markers"]
    assert {c.name: list(c.x) for c in curves} == {
        title: [1, 3, 5, 8, 12] for title in SCORES.values()
    }


def test_other_outcomes_change_the_table_and_later_visits_do_not(world):
    visits, found = world
    lie = found.copy()
    own = lie["replicate"] == 2
    lost = lie["fate"] == "Degraded"
    lie.loc[own & lost, "fate"], lie.loc[own & ~lost, "fate"] = "Stable Always Right", "Degraded"
    one = visits[(visits["replicate"] == 2) | (visits["replicate"] == 0)]
    past = one[one["visit"] <= 5]
    whole, cut = judged(one, found).loc[[1, 3, 5]], judged(past, found)
    pd.testing.assert_frame_equal(whole.drop(columns="n_kept"), cut.drop(columns="n_kept"))
    assert not judged(one, lie)["auroc"].loc[[1, 3, 5]].equals(whole["auroc"])


def test_the_truth_only_chooses_and_grades(world):
    visits, found = world
    stake = at_stake(visits, found)
    scored = features(stake.votes, 4)
    later = visits["visit"] > 1
    order = np.random.default_rng(0).permutation(int(later.sum()))
    mixed = visits.copy()
    for name in TRUTH:
        mixed.loc[later, name] = visits.loc[later, name].to_numpy()[order]
    assert np.array_equal(features(at_stake(mixed, found).votes, 4), scored)


def test_flip_rate_in_time_by_hand(voted):
    steady = [0.9] * 12
    early = [0.9, 0.9, 0.4, 0.9, 0.9, 0.6, 0.2] + [0.1] * 5
    silent = [0.9, 0.9, 0.8, 0.7, 0.6] + [0.1] * 7
    visits = voted([[steady, early, silent]] * 2)
    assert flip_rate_in_time(visits, fates(visits)) == 0.5
    calm = voted([[steady]])
    assert np.isnan(flip_rate_in_time(calm, fates(calm)))


def test_what_cannot_be_done_is_said(world, voted):
    visits, found = world
    for changes, said in (
        ({"visits": visits.drop(columns="tie")}, "missing columns tie"),
        ({"visits": visits[visits["replicate"] == 0]}, "replicates = 1, folds = 4; at least two"),
        ({"visits": voted(np.full((2, 2, 10), 0.1))}, "no problem is at stake"),
    ):
        options = {"visits": visits, "fates": found, "rng": np.random.default_rng(0), **changes}
        with pytest.raises(UserError, match=said):
            lost_problem_auroc(**options)
