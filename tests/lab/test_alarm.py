import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from lab.alarm import SCORES, alarm_table, fit_alarm, lead_summary, lead_times
from lab.auroc import auroc
from lab.errors import UserError
from lab.fate import fates
from lab.logistic import RIDGE, fit_logistic
from lab.risk import held_out_scores
from lab.schema import VISITS
from lab.stakes import at_stake, gather
from lab.votes_so_far import TRIVIAL, features, votes_so_far

RIGHT, WRONG, W = 3, 5, 5
TRUTH = [column.name for column in VISITS if column.needs_truth]


def voted(make_visits, accuracy, **columns):
    """Two-answer votes from label accuracies (R, N, 1 + visits): the larger share is the label."""
    accuracy = np.asarray(accuracy, float)
    correct = accuracy >= 0.5
    flipped = np.diff(correct, axis=-1, prepend=correct[..., :1])
    windows = [flipped[..., max(0, t - W + 1) : t + 1].sum(-1) for t in range(flipped.shape[-1])]
    return pd.DataFrame(
        make_visits(
            accuracy,
            label=np.where(correct, RIGHT, WRONG),
            flipped=flipped,
            flip_rate=np.stack(windows, axis=-1) / W,
            match_rate=np.maximum(accuracy, 1 - accuracy),
            label_correct=correct,
            **columns,
        )
    )


@pytest.fixture(scope="module")
def world(make_visits):
    """Four runs of 60 problems: some fall from their start, others rise, all with noisy votes."""
    rng = np.random.default_rng(7)
    start = rng.uniform(0.3, 0.95, (4, 60, 1))
    falls = rng.random((4, 60, 1)) < 0.4
    t = np.arange(13)
    mean = np.where(falls, start - 0.05 * t, start + 0.02 * t).clip(0.05, 0.97)
    visits = voted(make_visits, rng.binomial(64, mean) / 64)
    return visits, fates(visits)


def truth_permuted(visits, seed=0):
    """The same votes under other true answers."""
    order = np.random.default_rng(seed).permutation(len(visits))
    return visits.assign(**{name: visits[name].to_numpy()[order] for name in TRUTH})


def test_features_by_hand(make_visits):
    accuracy = [[[0.75, 0.5, 0.25, 0.125], [1.0, 1.0, 1.0, 1.0]]]
    visits = voted(make_visits, accuracy)
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


def test_slope_looks_back_five_visits_and_a_first_label_may_come_late(make_visits):
    accuracy = [[[1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]]]
    visits = voted(make_visits, accuracy)
    visits.loc[visits["visit"] == 0, "label"] = -1
    found = features(votes_so_far(visits)).iloc[0]
    assert (found["mr_slope"], found["moved"]) == (0, 0)
    visits["label"] = -1
    assert features(votes_so_far(visits))["moved"].tolist() == [0]


def test_trivial_scores_point_at_low_match_rates_and_many_flips(make_visits):
    votes = votes_so_far(voted(make_visits, [[[0.75, 0.5, 0.25]]]))
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


def test_at_stake_was_right_twice_at_first(make_visits):
    up, down, kept = [0.4] + [0.9] * 9, [0.9, 0.9, 0.6, 0.6] + [0.1] * 6, [0.9] * 10
    late = [0.9, 0.4] + [0.9] * 8
    visits = voted(make_visits, [[up, down, kept, late], [kept, kept, kept, down]])
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


def test_undefined_where_nothing_is_lost(make_visits):
    visits = voted(make_visits, np.full((2, 3, 10), 0.9))
    table = alarm_table(visits, fates(visits), np.random.default_rng(0), (1,))
    assert table[["auroc", "low", "high"]].isna().all(axis=None)
    assert (table["n_lost"] == 0).all() and (table["n_kept"] == 6).all()
    with pytest.raises(UserError, match="no lost problem at stake; give more replicates"):
        lead_times(visits, fates(visits), np.random.default_rng(0))


def test_lead_times_by_hand(make_visits):
    steady = [0.9] * 12
    twice = [0.9, 0.9, 0.4] + [0.9] * 9
    early = [0.9, 0.9, 0.4, 0.9, 0.9, 0.6, 0.2] + [0.1] * 5
    late = [0.9, 0.9, 0.8, 0.7, 0.6, 0.4, 0.6] + [0.1] * 5
    silent = [0.9, 0.9, 0.8, 0.7, 0.6] + [0.1] * 7
    visits = voted(make_visits, [[steady, twice, early, late, silent]] * 2, replicates=[3, 8])
    leads = lead_times(
        visits, fates(visits), np.random.default_rng(0), false_alarms=0.5, scores=("flips",)
    )
    own = leads[leads["replicate"] == 8].set_index("problem")
    assert own["lost"].tolist() == [False, False, True, True, True]
    assert own["last_win"].tolist() == [11, 11, 5, 6, 4]
    # One of two kept problems may sound, so the threshold is the other's peak of no flips.
    assert own["alarm"].tolist()[1:] == [2, 2, 5, 5]
    assert np.isnan(own.loc[0, "alarm"])
    assert own["lead"].tolist()[2:] == [3, 1, -1]
    row = lead_summary(leads, np.random.default_rng(0)).set_index("score").loc["flips"]
    assert (row["false_alarms"], row["caught"], row["in_time"]) == (0.5, 1, 2 / 3)
    assert (row["lead_q25"], row["lead_median"], row["lead_q75"]) == (-0.5, 1, 2.5)
    # Both runs are alike, so no draw of them differs.
    assert (row["in_time_low"], row["in_time_high"]) == (2 / 3, 2 / 3)
    assert (row["n_lost"], row["n_kept"]) == (6, 4)
    strict = lead_times(
        visits, fates(visits), np.random.default_rng(0), false_alarms=0, scores=("flips",)
    )
    alarms = strict[strict["replicate"] == 3].set_index("problem")["alarm"]
    # With no allowance the threshold is 2, flips there and back: only a third one sounds.
    assert alarms.isna().tolist() == [True, True, False, False, True]
    assert alarms.loc[[2, 3]].tolist() == [6, 7]


def test_a_stated_rate_holds_where_it_was_set_and_a_higher_one_warns_no_later(world):
    visits, found = world
    rates = (0.05, 0.2, 0.5)
    tables = [
        lead_times(visits, found, np.random.default_rng(0), false_alarms=rate) for rate in rates
    ]
    for name in SCORES:
        alarms = [t.loc[t["score"] == name, "alarm"].fillna(np.inf).to_numpy() for t in tables]
        assert (alarms[0] >= alarms[1]).all() and (alarms[1] >= alarms[2]).all()
    summary = lead_summary(tables[1], np.random.default_rng(0)).set_index("score")
    assert summary.loc["alarm", "false_alarms"] < 0.35
    assert summary.loc["alarm", "in_time"] > summary.loc["fr", "in_time"]
    assert (summary["in_time"] <= summary["caught"]).all()
    assert (summary["in_time_low"] <= summary["in_time"]).all()
    assert (summary["in_time_high"] >= summary["in_time"]).all()


def test_logistic_fit_is_the_penalised_optimum():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(5, 2, 300), rng.normal(size=300), np.full(300, 0.1)])
    y = rng.random(300) < expit(x[:, 0] - 5)
    model = fit_logistic(x, y)
    error = model.risk(x) - y
    scaled = (x - model.mean_F) / model.scale_F
    assert error.sum() == pytest.approx(0, abs=1e-2)
    assert error @ scaled + RIDGE * model.weight_F == pytest.approx(np.zeros(3), abs=1e-2)
    assert model.weight_F[0] > 1 and model.weight_F[2] == 0


def test_logistic_of_separable_and_of_one_class():
    x = np.arange(6.0)[:, None]
    model = fit_logistic(x, x[:, 0] > 2)
    assert np.isfinite(model.weight_F).all()
    assert (np.diff(model.risk(x)) > 0).all()
    assert np.isnan(fit_logistic(x, np.ones(6, bool)).risk(x)).all()


def test_weights_are_there_to_read(world):
    weights = fit_alarm(*world, (1, 9)).weights()
    assert weights.index.tolist() == [1, 9]
    assert weights.loc[9, "moved"] > 0 and weights.loc[9, "held"] < 0
    assert weights.loc[9, "unparseable"] == 0


def test_what_cannot_be_done_is_said(world, make_visits):
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
    with pytest.raises(UserError, match="1 replicates, 4 folds: at least two"):
        alarm_table(visits[visits["replicate"] == 0], found, rng)
    with pytest.raises(UserError, match="visit 2: the model was fitted for the visits 1, 9"):
        fit_alarm(visits, found, (1, 9)).risk(visits, 2)
    hopeless = voted(make_visits, np.full((2, 2, 10), 0.1))
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
