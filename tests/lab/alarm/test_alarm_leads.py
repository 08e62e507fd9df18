"""Lead time of the alarm before a problem's last win."""

import numpy as np

from lab.alarm.lead_time import lead_summary, lead_times
from lab.alarm.risk import SCORES
from lab.measures.fate import fates


def test_lead_times_by_hand(voted):
    steady = [0.9] * 12
    twice = [0.9, 0.9, 0.4] + [0.9] * 9
    early = [0.9, 0.9, 0.4, 0.9, 0.9, 0.6, 0.2] + [0.1] * 5
    late = [0.9, 0.9, 0.8, 0.7, 0.6, 0.4, 0.6] + [0.1] * 5
    silent = [0.9, 0.9, 0.8, 0.7, 0.6] + [0.1] * 7
    visits = voted([[steady, twice, early, late, silent]] * 2, replicates=[3, 8])
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
