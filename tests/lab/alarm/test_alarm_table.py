"""The alarm judged: held-out replicates, AUROC, intervals, refusals."""

import numpy as np
import pandas as pd
import pytest

from lab.alarm.cohort import at_stake, gather
from lab.alarm.features import votes_so_far
from lab.alarm.lead_time import lead_times
from lab.alarm.risk import fit_alarm, held_out_scores
from lab.alarm.table import SCORES, alarm_table
from lab.errors import UserError
from lab.measures.fate import fates
from lab.stats.auroc import auroc


def test_a_replicate_is_not_judged_by_its_own_outcomes(world):
    visits, found = world
    stake = at_stake(visits, found)
    lie = stake.assign(lost=stake["lost"] ^ (stake["replicate"] == 2))
    held = (stake["replicate"] == 2).to_numpy()
    votes = votes_so_far(visits)
    honest = held_out_scores(gather(votes, stake, (5,)), held)
    same = held_out_scores(gather(votes, lie, (5,)), held)
    assert all((honest[name] == same[name]).all() for name in SCORES)
    other = held_out_scores(gather(votes, lie, (5,)), ~held)
    assert not (other["alarm"] == honest["alarm"]).any()


def test_at_stake_was_right_twice_at_first(voted):
    up, down, kept = [0.4] + [0.9] * 9, [0.9, 0.9, 0.6, 0.6] + [0.1] * 6, [0.9] * 10
    late = [0.9, 0.4] + [0.9] * 8
    visits = voted([[up, down, kept, late], [kept, kept, kept, down]])
    found = at_stake(visits.sample(frac=1, random_state=0), fates(visits))
    assert found["replicate"].tolist() == [0, 0, 1, 1, 1, 1]
    assert found["problem"].tolist() == [1, 2, 0, 1, 2, 3]
    assert found["lost"].tolist() == [True, False, False, False, False, True]
    assert found["last_win"].tolist() == [3, 9, 9, 9, 9, 3]


def test_table_agrees_with_auroc_run_by_run(world):
    visits, found = world
    table = alarm_table(visits, found, np.random.default_rng(0), (1, 4, 9), n_resamples=200)
    assert table["score"].tolist() == [*SCORES] * 3
    stake = at_stake(visits, found)
    now = stake.merge(visits[visits["visit"] == 4], on=["replicate", "problem"])
    runs = [run for _, run in now.groupby("replicate")]
    pairs = np.array([run["lost"].sum() * (~run["lost"]).sum() for run in runs])
    each = np.array([auroc(1 - run["match_rate"], run["lost"]) for run in runs])
    row = table.set_index(["visit", "score"]).loc[(4, "mr")]
    assert row["auroc"] == pytest.approx(pairs @ each / pairs.sum())
    assert row["low"] <= row["auroc"] <= row["high"]
    assert (row["n_lost"], row["n_kept"]) == (stake["lost"].sum(), (~stake["lost"]).sum())
    assert table[["auroc", "low", "high"]].stack().between(0, 1).all()
    best = table[table["score"] == "alarm"]
    assert (best[["gain", "gain_low", "gain_high"]] == 0).all(axis=None)
    merged = table.merge(best[["visit", "auroc"]], on="visit", suffixes=("", "_alarm"))
    assert np.allclose(merged["gain"], merged["auroc_alarm"] - merged["auroc"])


def test_the_alarm_learns_what_no_single_score_tells(world):
    visits, found = world
    table = alarm_table(visits, found, np.random.default_rng(0), (9,)).set_index("score")
    assert table.loc["alarm", "auroc"] > 0.95
    assert (table["gain_low"].drop("alarm") > 0).all()
    # Within a replicate a fit of one feature orders the problems as the feature does, or reversed.
    mr = table.loc["mr", "auroc"]
    assert table.loc["mr_fitted", "auroc"] == pytest.approx(max(mr, 1 - mr))


def test_same_seed_same_table_and_votes_alone_decide(world):
    visits, found = world
    first, again = (alarm_table(visits, found, np.random.default_rng(3), (3,)) for _ in range(2))
    pd.testing.assert_frame_equal(first, again)
    shuffled = visits.sample(frac=1, random_state=0)
    mixed = alarm_table(shuffled, found, np.random.default_rng(3), (3,))
    pd.testing.assert_frame_equal(first, mixed)


def test_unmoved_leaves_out_what_has_already_moved(world):
    visits, found = world
    whole, still = (
        alarm_table(visits, found, np.random.default_rng(0), (9,), unmoved=u) for u in (False, True)
    )
    assert still["n_lost"].iloc[0] < whole["n_lost"].iloc[0]
    assert still.set_index("score").loc["moved", "auroc"] == 0.5


def test_pairs_across_runs_are_those_that_one_model_scored(world):
    visits, found = world
    one = alarm_table(visits, found, np.random.default_rng(0), (9,), pairs="same_model")
    within = alarm_table(visits, found, np.random.default_rng(0), (9,))
    # Four folds of four replicates: no two share a model.
    assert np.allclose(one["auroc"], within["auroc"])
    two = alarm_table(visits, found, np.random.default_rng(0), (9,), pairs="same_model", folds=2)
    assert not np.allclose(two["auroc"], within["auroc"])
    assert two["n_lost"].equals(within["n_lost"])


def test_undefined_where_nothing_is_lost(voted):
    visits = voted(np.full((2, 3, 10), 0.9))
    table = alarm_table(visits, fates(visits), np.random.default_rng(0), (1,))
    assert table[["auroc", "low", "high"]].isna().all(axis=None)
    assert (table["n_lost"] == 0).all() and (table["n_kept"] == 6).all()
    with pytest.raises(UserError, match="no lost problem at stake; give more replicates"):
        lead_times(visits, fates(visits), np.random.default_rng(0))


def test_what_cannot_be_done_is_said(world, voted):
    visits, found = world
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="missing columns tie"):
        votes_so_far(visits.drop(columns="tie"))
    with pytest.raises(UserError, match="there are no visits"):
        votes_so_far(visits.head(0))
    with pytest.raises(UserError, match="a visit is there twice"):
        votes_so_far(pd.concat([visits, visits.head(1)]))
    with pytest.raises(UserError, match="visit 13: the run has visits 1 to 12"):
        alarm_table(visits, found, rng, (13,))
    with pytest.raises(UserError, match="visit 0: the run has"):
        alarm_table(visits, found, rng, (0,))
    with pytest.raises(UserError, match="1 replicate in 4 folds; at least two"):
        alarm_table(visits[visits["replicate"] == 0], found, rng)
    with pytest.raises(UserError, match="visit 2: the model was fitted for the visits 1, 9"):
        fit_alarm(visits, found, (1, 9)).risk(visits, 2)
    hopeless = voted(np.full((2, 2, 10), 0.1))
    with pytest.raises(UserError, match="no problem is at stake"):
        alarm_table(hopeless, fates(hopeless), rng)
    with pytest.raises(ValueError, match=r"false_alarms = 1: must be in \[0, 1\)"):
        lead_times(visits, found, rng, false_alarms=1)
    with pytest.raises(ValueError, match="luck: not among alarm"):
        lead_times(visits, found, rng, scores=("luck",))


def test_a_run_that_stopped_midway_is_judged_on_what_it_has(world):
    visits, found = world
    cut = visits[(visits["visit"] < 12) | (visits["problem"] < 30)]
    votes = votes_so_far(cut)
    assert len(votes.until(12).problem_H) == 120 and len(votes.until(11).problem_H) == 240
    table = alarm_table(cut, found, np.random.default_rng(0), (11, 12))
    n = table.groupby("visit")[["n_lost", "n_kept"]].first().sum(axis=1)
    stake = at_stake(cut, found)
    assert n.loc[11] == len(stake) and n.loc[12] == (stake["problem"] < 30).sum()
    assert np.isfinite(table["auroc"]).all()
