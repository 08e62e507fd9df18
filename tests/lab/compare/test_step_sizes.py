import numpy as np
import pytest

from lab.compare.collection import gather
from lab.compare.effort import own_best
from lab.compare.tables import difference, over_steps

SCORES = {
    ("ttrl", 0.1): [0.50, 0.52, 0.54, 0.56],
    ("ttrl", 0.2): [0.40, 0.42, 0.44, 0.46],
    ("guard", 0.1): [0.60, 0.10, 0.60, 0.10],
    ("guard", 0.2): [0.30, 0.90, 0.30, 0.90],
}


@pytest.fixture
def comparisons(make_trace):
    traces = []
    for (arm, step), finals in SCORES.items():
        score_RE = np.linspace(np.full(4, 0.5), finals, 9).T
        accuracy_RNE = np.repeat(score_RE[:, None], 2, axis=1)
        trace = make_trace(arm, accuracy_RNE, score_RE, seeds=[4, 5, 6, 7])
        trace.run.config["step"] = step
        traces.append(trace)
    return gather(traces)[0]


def test_step_sizes_are_compared_apart_and_say_so(comparisons):
    assert [c.step_size for c in comparisons] == [0.1, 0.2]
    assert [c.arms for c in comparisons] == [["ttrl", "guard"]] * 2
    assert "step size 0.2" in comparisons[1].title


def test_rows_hold_every_run(comparisons):
    rows = over_steps(comparisons)
    assert len(rows) == 16
    for (arm, step), finals in SCORES.items():
        own = rows[(rows["arm"] == arm) & (rows["step"] == step)]
        assert own["seed"].tolist() == [4, 5, 6, 7]
        assert own["pass_final"].to_numpy() == pytest.approx(100 * np.array(finals))
    lost = rows[(rows["arm"] == "ttrl") & (rows["step"] == 0.2)]
    assert lost["drop"].notna().all()
    found = difference(over_steps(comparisons[:1]), "guard", "ttrl", "pass_final")
    assert (found.n, found.mean) == (4, pytest.approx(np.mean([10, -42, 6, -46])))


def test_own_best_is_chosen_by_the_other_half_of_the_seeds(comparisons):
    best = own_best(over_steps(comparisons), ["step"])
    ttrl = best[best["arm"] == "ttrl"].sort_values("seed")
    assert ttrl["step"].tolist() == [0.1] * 4
    assert ttrl["pass_final"].to_numpy() == pytest.approx([50, 52, 54, 56])
    # Seeds 4 and 6 would take .1, seeds 5 and 7 take .2: each is judged at the others' choice.
    guard = best[best["arm"] == "guard"].sort_values("seed")
    assert guard["step"].tolist() == [0.2, 0.1, 0.2, 0.1]
    assert guard["pass_final"].to_numpy() == pytest.approx([30, 10, 30, 10])


def test_seeds_that_a_step_size_lacks_take_no_part(comparisons):
    rows = over_steps(comparisons)
    rows = rows[~((rows["seed"] == 7) & (rows["step"] == 0.2))]
    assert set(own_best(rows, ["step"])["seed"]) == {4, 5, 6}
