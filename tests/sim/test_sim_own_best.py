"""Every arm at its own best step: the best rival, the ends of the grid, and the words."""

import numpy as np
import pandas as pd
import pytest

from lab.compare.effort import BEST_RIVAL, best_among, edges, own_best, own_best_words
from sim.studies.compare import BEST, contrasts

STEPS = (0.01, 0.1, 1.0)


@pytest.fixture(scope="module")
def rows(scored):
    """The guard is best at .1, TTRL without training, frozen labels at the largest step."""
    means = {
        "ttrl": (54, 50, 40),
        "guard": (54, 60, 50),
        "frozen": (56, 58, 63),
        "memory": (55.5, 62, 45),
        "truth": (60, 80, 90),
    }
    return scored(
        {
            (0.0, s, arm): m
            for arm, scores in means.items()
            for s, m in zip(STEPS, scores, strict=True)
        },
        policy="attractor",
    )


def test_the_best_rival_is_chosen_with_its_step(rows):
    best = best_among(rows, ["ttrl", "frozen", "memory"], ["step"], "pass_final")
    assert set(zip(best["arm"], best["step"], strict=True)) == {("frozen", 1.0)}
    assert best["replicate"].tolist() == [*range(12)]
    assert len(best_among(rows, ["release"], ["step"], "pass_final")) == 0


def test_the_choice_of_a_rival_is_judged_on_the_other_half(scored):
    # Twenty equal rivals: the best looks good on the replicates that chose it and nowhere else.
    arms = [f"arm{n}" for n in range(20)]
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(
        {
            "arm": np.repeat(arms, 12),
            "status": "done",
            "step": 0.1,
            "replicate": np.tile(np.arange(12), 20),
            "pass_final": rng.normal(size=240),
        }
    )
    naive = noise.groupby("arm")["pass_final"].mean().max()
    honest = best_among(noise, arms, ["step"], "pass_final")["pass_final"].mean()
    assert naive > 0.4 and honest < naive / 2


def test_contrasts_hold_every_pair_and_guards_against_the_best_rival(rows):
    table = contrasts(rows, ["kappa_att", "step"], seed=0)
    scores = table[table["metric"] == "pass_final"]
    assert len(scores) == 10 * 4 + 1
    best = scores[scores["at"] == BEST].set_index(["arm", "against"])
    assert best["step"].isna().all()
    assert best.loc[("frozen", "ttrl"), "mean"] == pytest.approx(9, abs=0.3)
    against = best.loc[("guard", BEST_RIVAL)]
    assert against["mean"] == pytest.approx(-3, abs=0.2) and against["n"] == 12
    assert against["low"] < -2.8 and against["t_low"] < against["mean"] < against["t_high"] < -2.8
    assert "below zero beyond noise" in against["verdict"]
    assert (table["low"] < table["mean"] + 1e-9).all()
    assert (table["mean"] < table["high"] + 1e-9).all()
    effort = table[(table["metric"] == "update") & (table["at"] != BEST)]
    assert effort["mean"].abs().max() < 1e-9


def test_without_a_guard_or_a_rival_there_is_no_such_difference(rows):
    for arms in (["ttrl", "frozen"], ["guard"], ["guard", "truth"]):
        part = rows[rows["arm"].isin(arms)]
        table = contrasts(part, ["step"], seed=0)
        assert BEST_RIVAL not in set(table.get("against", ()))
        assert not [line for line in own_best_words(part, 0) if "minus the best rival" in line]


def test_ends_of_the_grid_are_named(rows):
    best = own_best(rows, ["step"], "pass_final")
    found = {(e.arm, e.value, e.side) for e in edges(best, "step", STEPS)}
    assert found == {
        ("ttrl", 0.01, "smallest"),
        ("frozen", 1.0, "largest"),
        ("truth", 1.0, "largest"),
    }
    assert edges(best, "step", [0.1]) == []


def test_the_words(rows):
    lines = own_best_words(rows, 0)
    assert len(lines) == 3
    assert lines[0].startswith(
        "TTRL-Guard at its best minus the best rival at its best (Frozen labels at 1): pass@1 -3."
    )
    assert "below zero beyond noise (12 pairs)" in lines[0]
    assert lines[1].startswith("no step of the grid is better than no training at all, 5")
    assert ", for: TTRL 5" in lines[1] and "TTRL-Guard" not in lines[1]
    # TTRL is best without training, true labels are the ceiling: no fault of the grid.
    assert lines[2] == (
        "warning: the best step of Frozen labels is the largest of the grid, 1: a larger one may "
        "be better still"
    )
