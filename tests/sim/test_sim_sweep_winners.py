"""Who wins where, and the choice of each arm's own best step."""

import numpy as np
import pandas as pd
import pytest

from sim.contrast import BEST, contrasts
from sim.measure import MEASURES
from sim.own_best import own_best
from sim.sweep.winners import chart, print_winners, winners, winners_of

RNG = np.random.default_rng(8)
COMMON = RNG.normal(size=12)
"""What a replicate brings to every arm: paired differences do not see it."""


def rows(scores):
    """Rows of a sweep with given mean scores by (kappa_att, step, arm)."""
    parts = []
    for (kappa, step, arm), mean in scores.items():
        noise = np.random.default_rng(len(parts)).normal(scale=0.1, size=12)
        part = pd.DataFrame(dict.fromkeys(MEASURES, 0.0), index=range(12))
        part["pass_final"] = mean + 5 * COMMON + noise
        part["update_norm"] = step
        settings = {"kappa_att": kappa, "step": step, "arm": arm, "status": "done"}
        parts.append(part.assign(replicate=range(12), **settings))
    return pd.concat(parts, ignore_index=True)


TABLE = rows(
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


def test_the_best_arm_and_who_cannot_be_told_from_it():
    found = winners(TABLE, ["kappa_att", "step"]).set_index("step")
    assert {found.loc[0.1, "winner"], found.loc[0.1, "ties"]} == {"ttrl", "guard"}
    assert found.loc[0.2, "winner"] == "frozen" and found.loc[0.2, "ties"] == ""
    assert found.loc[0.2, "runner_up"] == "guard"
    assert found.loc[0.2, "margin"] == pytest.approx(12, abs=0.2)
    assert 11.7 < found.loc[0.2, "low"] < found.loc[0.2, "margin"] < found.loc[0.2, "high"] < 12.3
    assert found["n"].tolist() == [12, 12]
    assert found["ceiling"].tolist() == pytest.approx([90, 95], abs=0.1 + 5 * abs(COMMON.mean()))


def test_failed_rows_and_single_arms():
    broken = TABLE.copy()
    broken.loc[broken["arm"] == "frozen", "status"] = "failed"
    found = winners(broken, ["kappa_att", "step"]).set_index("step")
    assert found.loc[0.2, "winner"] == "guard"
    alone = winners(TABLE[TABLE["arm"] == "guard"], ["step"])
    assert alone["winner"].tolist() == ["guard"] * 2 and alone["margin"].isna().all()


def test_every_arm_at_its_own_best_step():
    best = own_best(TABLE, ["step"], "pass_final")
    steps = best.groupby("arm")["step"].unique()
    assert {arm: list(s) for arm, s in steps.items()} == {
        "ttrl": [0.1],
        "guard": [0.1],
        "frozen": [0.2],
        "truth": [0.2],
    }
    assert best["arm"].tolist()[::12] == ["ttrl", "guard", "frozen", "truth"]
    assert best["replicate"].tolist() == [*range(12)] * 4
    found = winners_of(TABLE, ["kappa_att", "step"], 0)
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


def test_the_chart_shows_every_cell(capsys):
    found = winners_of(TABLE, ["kappa_att", "step"], 0)
    marks = chart(found.dropna(), "kappa_att", "step")
    assert marks.to_numpy().tolist()[0][0].endswith(" =1") and marks.loc[0.0, 0.2] == "frozen"
    print_winners(found, ["kappa_att", "step"])
    shown = capsys.readouterr().out
    assert "own best" in shown and "frozen" in shown
    print_winners(winners(TABLE, ["step"]), ["step"])
    assert "runner_up" in capsys.readouterr().out


def test_contrasts_hold_every_pair_at_equal_and_at_best_step():
    table = contrasts(TABLE, ["kappa_att", "step"], seed=0)
    scores = table[table["metric"] == "pass_final"]
    assert len(scores) == 6 * 3
    at_best = scores[scores["at"] == BEST].set_index(["arm", "against"])
    assert at_best["step"].isna().all()
    assert at_best.loc[("frozen", "ttrl"), "mean"] == pytest.approx(10, abs=0.3)
    assert "above zero" in at_best.loc[("frozen", "guard"), "verdict"]
    effort = table[(table["metric"] == "update") & (table["arm"] == "guard")]
    assert effort["mean"].abs().max() < 1e-9
    assert (table["low"] < table["mean"] + 1e-9).all()
    assert (table["mean"] < table["high"] + 1e-9).all()
