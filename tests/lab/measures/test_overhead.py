import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.dynamics import OTHER, STEP, step_seconds


def test_phases_add_up_to_the_step_and_the_baseline_is_100(timed):
    table = step_seconds({"ttrl": timed(5.0, 2.0), "guard": timed(4.0, 1.0)})
    own = table[table["replicate"] == 1].set_index(["arm", "phase"])
    assert own.loc[("ttrl", STEP), "seconds"] == pytest.approx(10)
    assert own.loc[("ttrl", STEP), "relative"] == pytest.approx(100)
    assert own.loc[("ttrl", OTHER), "seconds"] == pytest.approx(1)
    assert own.loc[("guard", "Update"), "relative"] == pytest.approx(20)
    assert own.loc[("ttrl", "Handing over weights"), "seconds"] == 0
    parts = table[table["phase"] != STEP].groupby(["arm", "replicate"])["seconds"].sum()
    whole = table[table["phase"] == STEP].set_index(["arm", "replicate"])["seconds"]
    pd.testing.assert_series_equal(parts.sort_index(), whole.sort_index())


def test_a_seed_that_the_baseline_lacks_has_no_relative_time(timed):
    table = step_seconds({"ttrl": timed(5.0, 2.0, 1), "guard": timed(4.0, 1.0, 2)})
    missing = table[(table["arm"] == "guard") & (table["replicate"] == 1)]
    assert missing["relative"].isna().all() and missing["seconds"].notna().all()


def test_untimed_runs_are_refused_or_left_out(timed):
    plain = timed(5.0, 2.0)[["replicate", "step"]]
    with pytest.raises(UserError, match="no run of ttrl"):
        step_seconds({"guard": plain})
    with pytest.raises(UserError, match="only real runs are timed"):
        step_seconds({"ttrl": plain})
    assert set(step_seconds({"ttrl": timed(5.0, 2.0), "guard": plain})["arm"]) == {"ttrl"}
    with pytest.raises(UserError, match="ttrl, replicate 0 has no step after 1 of warm-up"):
        step_seconds({"ttrl": timed(5.0, 2.0).query("step == 1")})


def test_a_replicate_whose_clock_was_not_read_is_no_step_without_time(timed):
    guard = timed(4.0, 1.0)
    times = [name for name in guard if name.startswith("seconds_")]
    guard.loc[guard["replicate"] == 1, times] = float("nan")
    table = step_seconds({"ttrl": timed(5.0, 2.0), "guard": guard})
    assert table[table["arm"] == "guard"]["replicate"].unique().tolist() == [0]
