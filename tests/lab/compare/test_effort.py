import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.compare.effort import (
    CLOSE,
    MAX_TRIES,
    achieved_ratio,
    beyond_effort,
    mean_update,
    own_best,
    own_best_words,
    search,
)
from lab.measures import update_by_replicate


def steps(norms, sizes=8, replicate=0):
    return pd.DataFrame({"replicate": replicate, "update_norm": norms, "n_problems": sizes})


def test_norms_of_each_replicate():
    both = pd.concat([steps([1.0, 3.0], replicate=4), steps([1.0, 4.0], [8, 4], replicate=2)])
    found = update_by_replicate(both)
    assert found.index.tolist() == [2, 4] and found.tolist() == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(
    ("matched", "guard", "message"),
    [
        (steps([0.1]), steps([0.0]), "the guard's run did not move"),
        (steps([]), steps([0.1]), "update norms are missing"),
        (steps([0.1]), steps([np.nan]), "update norms are missing"),
        (steps([0.1]), steps([0.1]).drop(columns="n_problems"), "missing columns n_problems"),
    ],
)
def test_what_cannot_be_matched(matched, guard, message):
    with pytest.raises(UserError, match=message):
        achieved_ratio(mean_update(matched), mean_update(guard))


@pytest.mark.parametrize("power", [0.4, 0.8, 1.0, 1.5])
def test_the_search_meets_a_norm_that_is_a_power_of_the_factor(power):
    asked = []

    def measure(factor):
        asked.append(factor)
        return 1.8 * factor**power

    factor = search(measure, 1.8)
    assert 1.8 * factor**power == pytest.approx(1, abs=CLOSE)
    assert factor == pytest.approx(1.8 ** (-1 / power), rel=0.01)
    assert factor in asked and len(asked) <= 2


def test_a_match_at_factor_one_takes_no_run():
    assert search(lambda _: pytest.fail("was run"), 1.001) == 1.0


def test_a_search_that_never_meets_its_target_returns_the_closest():
    ratios, asked = iter([1.4, 0.8, 1.3, 1.25, 1.0]), []
    factor = search(lambda factor: asked.append(factor) or next(ratios), 1.5)
    assert (factor, len(asked)) == (asked[1], MAX_TRIES)


@pytest.mark.parametrize("ratio", [0.0, np.nan, np.inf])
def test_a_run_that_did_not_move_ends_the_search(ratio):
    with pytest.raises(UserError, match="did not move"):
        search(lambda _: ratio, 2.0)
    with pytest.raises(UserError, match="did not move"):
        search(lambda _: 1.0, ratio)


def rows(*given):
    names = ["arm", "step", "replicate", "update_norm", "pass_final"]
    return pd.DataFrame(given, columns=names)


def test_the_baseline_of_a_seed_is_read_off_between_its_steps_and_nothing_is_extrapolated():
    found = rows(
        ("ttrl", 1.0, 0, 1.0, 50.0),
        ("ttrl", 4.0, 0, 4.0, 70.0),
        ("ttrl", 1.0, 1, 1.0, 10.0),
        ("ttrl", 4.0, 1, 4.0, 30.0),
        ("mine", 1.0, 1, 2.0, 65.0),  # halfway in the logarithm: 20
        ("mine", 1.0, 0, 5.0, 65.0),
        ("mine", 1.0, 0, 0.0, 65.0),
        ("mine", 1.0, 7, 2.0, 65.0),
    )
    beyond = beyond_effort(found, "pass_final")
    assert beyond[:5] == pytest.approx([0, 0, 0, 0, 45])
    assert np.isnan(beyond[5:]).all()


def test_a_missing_column_is_named():
    found = rows(("ttrl", 1.0, 0, 1.0, 50.0)).drop(columns="update_norm")
    with pytest.raises(UserError, match="missing columns update_norm"):
        beyond_effort(found, "pass_final")


SCORES = {  # (arm, step): scores of four replicates
    ("ttrl", 0.1): [50, 52, 54, 56],
    ("ttrl", 0.2): [40, 42, 44, 46],
    ("guard", 0.1): [60, 10, 60, 10],
    ("guard", 0.2): [30, 90, 30, 90],
}


def test_own_best_is_chosen_by_the_other_half_of_the_replicates():
    given = rows(*((*at, r, 1.0, x) for at, xs in SCORES.items() for r, x in enumerate(xs, 4)))
    best = own_best(given, ["step"])
    chosen = {
        arm: (part.step.tolist(), part.pass_final.tolist()) for arm, part in best.groupby("arm")
    }
    # Replicates 4 and 6 would take .1, 5 and 7 would take .2: each is judged at the others' choice.
    assert chosen["guard"] == ([0.2, 0.1, 0.2, 0.1], [30, 10, 30, 10])
    assert chosen["ttrl"] == ([0.1] * 4, [50, 52, 54, 56])
    lacking = given[~((given["replicate"] == 7) & (given["step"] == 0.2))]
    assert set(own_best(lacking, ["step"])["replicate"]) == {4, 5, 6}


def test_a_step_that_is_better_than_no_training_is_not_denied_where_the_halves_disagree():
    given = rows(*((*at, r, 1.0, x) for at, xs in SCORES.items() for r, x in enumerate(xs)))
    lines = own_best_words(given.assign(pass_start=55.0))
    (words,) = (line for line in lines if line.startswith("no step"))
    assert words.endswith("55.0, for: TTRL 53.0")


def test_words_on_own_best_steps_pass_over_what_no_step_changes():
    still = ("maj_at_n", "truth (W=3)")
    given = [(a, s, r, 1.0, 70.0) for a in still for s in (1, 2) for r in (0, 1)]
    given += [("ttrl", s, r, 1.0, 50.0 - s) for s in (1, 2) for r in (0, 1, 2)]
    found = rows(*given)
    found["pass_start"] = 50.0 + 9.0 * found["replicate"]
    (line,) = own_best_words(found)
    # Three replicates start at 50, 59 and 68: those that two more arms lack count no less.
    assert line.startswith("no step of the grid is better than no training at all, 59.0, for: TTRL")
