"""The alarm and the scissor on simulated runs of plain TTRL."""

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from lab import fates
from lab.alarm.cohort import at_stake
from lab.alarm.lead_time import lead_summary, lead_times
from lab.alarm.table import alarm_table, fit_alarm
from lab.measures.scissor import scissor
from lab.trace.schema import VISITS
from sim import SimConfig, simulate

TRUTH = [column.name for column in VISITS if column.needs_truth]
AT = (1, 3, 5, 8, 12)


@pytest.fixture(scope="module")
def run():
    config = SimConfig(
        population="qwen-math500",
        guard=GuardConfig.off(),
        n_problems=300,
        epochs=20,
        replicates=4,
        step=0.08,
        seed=2,
    )
    visits = simulate(config).visits
    return visits, fates(visits)


def test_wrong_labels_close_in_on_what_is_degraded(run):
    table = scissor(*run)
    assert table.groupby("third")["n_problems"].sum().to_numpy() == pytest.approx(
        np.repeat((run[1]["fate"] == "Degraded").sum(), 3)
    )
    means = table.groupby("third")[["survival", "wins"]].mean()
    assert (means.diff().iloc[1:] < 0).all(axis=None)


def test_before_any_flip_the_flip_rate_is_blind_and_the_match_rate_is_not(run):
    visits, found = run
    table = alarm_table(visits, found, np.random.default_rng(0), AT)
    first = table[table["visit"] == 1].set_index("score")["auroc"]
    # At stake means that nothing has flipped by the first visit.
    assert first["fr"] == first["flips"] == first["moved"] == 0.5
    assert first["mr"] > 0.6
    stake = at_stake(visits, found)
    assert (table["n_lost"] == stake["lost"].sum()).all() and stake["lost"].sum() > 50
    assert (table["n_kept"] == (~stake["lost"]).sum()).all()


def test_the_alarm_improves_with_time_and_beats_the_flip_rate(run):
    table = alarm_table(*run, np.random.default_rng(0), AT)
    by_visit = table[table["score"] == "alarm"].set_index("visit")["auroc"]
    assert by_visit[12] > by_visit[5] > by_visit[1] > 0.6
    late = table[table["visit"] >= 5].set_index("score")
    assert (late.loc["fr", "gain_low"] > 0).all()


def test_votes_alone_score_a_simulated_run(run):
    visits, found = run
    alarm = fit_alarm(visits, found, (5,))
    blind = visits[visits["visit"] <= 5].drop(columns=TRUTH)
    pd.testing.assert_frame_equal(alarm.risk(blind, 5), alarm.risk(visits, 5))


def test_warnings_come_before_the_last_win(run):
    leads = lead_times(*run, np.random.default_rng(0), false_alarms=0.2)
    caught = leads.dropna(subset="alarm")
    assert (caught["lead"] == caught["last_win"] - caught["alarm"]).all()
    assert caught["alarm"].between(1, 20).all()
    summary = lead_summary(leads, np.random.default_rng(0)).set_index("score")
    assert summary.loc["alarm", "in_time"] > summary.loc["fr", "in_time"]
    assert summary.loc["alarm", "lead_median"] >= 1
