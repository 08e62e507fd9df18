"""The best arm per setting, and the choice of each arm's own best step."""

import numpy as np
import pandas as pd
import pytest

from lab.compare.own_best import own_best
from sim.studies.sweep.winners import chart, layout, print_winners, winners, winners_of

SHIFT = 1.0
"""Farther than the mean of what the replicates share."""


@pytest.fixture(scope="module")
def table(scored):
    return scored(
        {
            (0.0, 0.1, "ttrl"): 60,
            (0.0, 0.1, "guard"): 60,
            (0.0, 0.1, "frozen"): 50,
            (0.0, 0.1, "truth"): 90,
            (0.0, 0.2, "ttrl"): 40,
            (0.0, 0.2, "guard"): 58,
            (0.0, 0.2, "frozen"): 70,
            (0.0, 0.2, "truth"): 95,
        }
    )


def test_the_best_arm_and_who_cannot_be_told_from_it(table):
    found = winners(table, ["kappa_att", "step"]).set_index("step")
    assert {found.loc[0.1, "winner"], found.loc[0.1, "ties"]} == {"ttrl", "guard"}
    assert found.loc[0.2, "winner"] == "frozen" and found.loc[0.2, "ties"] == ""
    assert found.loc[0.2, "runner_up"] == "guard"
    assert found.loc[0.2, "margin"] == pytest.approx(12, abs=0.2)
    assert 11.7 < found.loc[0.2, "low"] < found.loc[0.2, "margin"] < found.loc[0.2, "high"] < 12.3
    assert found["n"].tolist() == [12, 12]
    assert found["ceiling"].tolist() == pytest.approx([90, 95], abs=0.1 + 5 * SHIFT)


def test_failed_rows_and_single_arms(table):
    broken = table.copy()
    broken.loc[broken["arm"] == "frozen", "status"] = "failed"
    found = winners(broken, ["kappa_att", "step"]).set_index("step")
    assert found.loc[0.2, "winner"] == "guard"
    alone = winners(table[table["arm"] == "guard"], ["step"])
    assert alone["winner"].tolist() == ["guard"] * 2 and alone["margin"].isna().all()


def test_every_arm_at_its_own_best_step(table):
    best = own_best(table, ["step"], "pass_final")
    steps = best.groupby("arm")["step"].unique()
    assert {arm: list(s) for arm, s in steps.items()} == {
        "ttrl": [0.1],
        "guard": [0.1],
        "frozen": [0.2],
        "truth": [0.2],
    }
    assert best["arm"].tolist()[::12] == ["ttrl", "guard", "frozen", "truth"]
    assert best["replicate"].tolist() == [*range(12)] * 4
    found = winners_of(table, ["kappa_att", "step"], 0)
    last = found.iloc[-1]
    assert len(found) == 3 and np.isnan(last["step"]) and last["winner"] == "frozen"
    assert last["margin"] == pytest.approx(10, abs=0.3)


def test_the_choice_is_judged_on_the_other_half():
    # Pure noise: the best of many steps looks good where it was chosen and nowhere else.
    rng = np.random.default_rng(3)
    steps, replicates = np.meshgrid(np.arange(40.0), np.arange(10), indexing="ij")
    noise = pd.DataFrame(
        {
            "arm": "ttrl",
            "status": "done",
            "step": steps.ravel(),
            "replicate": replicates.ravel(),
            "pass_final": rng.normal(size=400),
        }
    )
    naive = noise.groupby("step")["pass_final"].mean().max()
    honest = own_best(noise, ["step"], "pass_final")["pass_final"].mean()
    assert naive > 0.5 and abs(honest) < 0.5
    one = own_best(noise[noise["replicate"] == 0], ["step"], "pass_final")
    assert one["pass_final"].tolist() == [noise[noise["replicate"] == 0]["pass_final"].max()]


def test_the_chart_shows_every_cell(table, capsys):
    found = winners_of(table, ["kappa_att", "step"], 0)
    marks = chart(found.dropna(), "kappa_att", "step")
    assert marks.to_numpy().tolist()[0][0].endswith(" =1") and marks.loc[0.0, 0.2] == "frozen"
    print_winners(found, ["kappa_att", "step"])
    shown = capsys.readouterr().out
    assert "own best" in shown and "frozen" in shown
    print_winners(winners(table, ["step"]), ["step"])
    assert "runner_up" in capsys.readouterr().out


def test_the_step_runs_across_and_the_last_setting_makes_small_charts():
    assert layout(["step", "kappa_att", "kappa_corr"]) == ("step", "kappa_att", ["kappa_corr"])
    assert layout(["guard.W", "step"]) == ("step", "guard.W", [])
    assert layout(["guard.W", "n_votes", "load_sd"]) == ("load_sd", "guard.W", ["n_votes"])
    assert layout(["step"]) == ("step", None, [])
