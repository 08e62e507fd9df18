import numpy as np
import pytest

from lab.base.arms import DEMO_ARMS
from lab.compare.collection import gather
from lab.compare.tables import comparison_table, headline, metrics
from lab.measures import PAGE

# Nine visits each, the first before training: one label accuracy history per fate.
RIGHT = [1.0] * 9
LOST = [1.0] * 4 + [0.0] * 5
LEARNED = [0.0] * 4 + [1.0] * 5
WRONG = [0.0] * 9


@pytest.fixture
def five(compare):
    """Two replicates of two problems for each arm of the demo."""
    return compare(
        {
            "memory": ([[RIGHT, RIGHT], [RIGHT, RIGHT]], [0.7, 0.8], 0.5),
            "ttrl": ([[LOST, LOST], [LOST, LEARNED]], [0.3, 0.4], [1.0, 2.0]),
            "guard": ([[LOST, RIGHT], [LOST, WRONG]], [0.35, 0.35], [0.5, 1.0]),
            "matched": ([[LOST, LOST], [LOST, WRONG]], [0.3, 0.4], [0.5, 1.1]),
            "frozen": ([[RIGHT, LOST], [RIGHT, RIGHT]], [0.6, 0.6], 0.5),
        }
    )


def test_metrics_of_every_replicate(five):
    table = metrics(five)
    assert list(table.columns) == [metric.name for metric in PAGE]
    assert tuple(table.index.get_level_values("arm").unique()) == DEMO_ARMS
    first, second = table.loc[("ttrl", 0)], table.loc[("ttrl", 1)]
    assert (first["TotalDeg"], second["TotalDeg"]) == (100, 50)
    assert (first["L/D"], second["L/D"]) == (0, 1)
    assert (first["pass_start"], first["pass_best"]) == (50, 75)
    assert first["pass_final"] == pytest.approx(30)
    assert first["maj_start"] == 50 and np.isnan(first["maj_final"]), "measured at the start alone"
    assert table.loc[("guard", slice(None)), "update"].tolist() == [50, 50]
    assert table.loc[("memory", slice(None)), "update"].tolist() == [50, 25]
    assert np.isnan(table.loc[("memory", 0), "L/D"])


def test_the_final_vote_is_that_of_the_last_evaluation(make_trace):
    trace = make_trace("ttrl", np.full((2, 2, 9), 0.5), np.full((2, 9), 0.5))
    trace.evals.loc[trace.evals.index[-1], "maj_accuracy"] = 1
    ((comparison,), _) = gather([trace])
    votes = metrics(comparison).loc["ttrl", ["maj_start", "maj_final"]]
    np.testing.assert_equal(votes.to_numpy(), [[50, np.nan], [50, 100]])


def test_the_table_has_mean_spread_and_count(five):
    table = comparison_table(metrics(five))
    total = table.loc["ttrl", "TotalDeg"]
    assert total[["mean", "sd", "n"]].tolist() == pytest.approx([75, np.sqrt(1250), 2])
    assert table.loc["frozen", ("L/D", "n")] == 1
    assert np.isnan(table.loc["frozen", ("L/D", "sd")])


def test_the_three_numbers(five):
    damage, guard, rival = headline(five)
    (total,) = damage.parts
    assert (total.value.mean, total.value.n) == (75, 2)
    assert total.text.startswith("TotalDeg 75.0 % [95 % interval ")

    fates, scores = guard.parts
    # Replicate 0: 100 - 50 saved, replicate 1: 50 - 50.
    assert (fates.value.mean, fates.value.n) == (25, 2)
    assert fates.value.within_noise and "TotalDeg saved +25.0 points" in fates.text
    assert fates.text.endswith("within noise")
    assert scores.value.mean == pytest.approx(0)
    assert "moved 1.07 times as far" in guard.note

    # Both are equal on replicate 1, memory is better on replicate 0: each judges the other.
    fates, scores = rival.parts
    assert rival.note.startswith("Frozen labels in 1 pair and Vote memory in 1 pair; each half")
    assert fates.value.mean == np.mean([50 - 50, 50 - 0])
    assert scores.value.mean == pytest.approx(np.mean([60 - 35, 80 - 35]))
    for finding in (damage, guard, rival):
        assert "\n" not in finding.text


def test_missing_arms_and_pairs_are_said(compare, make_trace):
    damage, guard, rival = headline(compare({"guard": ([[RIGHT]], [0.9], 1.0)}))
    assert damage.text.endswith("not measured (no run of TTRL)")
    assert guard.note == "no run of TTRL at matched effort"
    assert rival.note == "no run of Frozen labels or Vote memory"
    assert not damage.parts + guard.parts + rival.parts

    traces = [
        make_trace(arm, [[RIGHT]], [[0.5] * 9], seeds=[seed])
        for seed, arm in enumerate(("guard", "matched", "frozen", "memory"))
    ]
    ((of_three,), _), ((of_four,), _) = gather(traces[:3]), gather(traces)
    _, guard, rival = headline(of_three)
    assert guard.note == "" and len(guard.parts) == 2
    assert all("no pair of the same seed" in part.text for part in guard.parts)
    assert rival.note == "Frozen labels, the only rival run" and headline(of_four)[2].note == ""


def test_the_rival_of_runs_too_short_for_fates_is_chosen_by_its_score(compare):
    half = [[[0.5] * 6] * 2] * 2
    arms = {"guard": (half, [0.4] * 2), "frozen": (half, [0.5] * 2), "memory": (half, [0.6] * 2)}
    _, _, rival = headline(compare({name: (*own, 1.0) for name, own in arms.items()}, visits=6))
    assert rival.note == (
        "Vote memory in 2 pairs; each half of the seeds has the rival of higher final pass@1 on "
        "the other half"
    )
    fates, scores = rival.parts
    assert fates.text == "TotalDeg saved: no pair of the same seed has it"
    assert scores.value.mean == pytest.approx(20)


def test_the_rival_of_a_single_seed_is_chosen_with_hindsight(compare):
    arms = {"guard": [[RIGHT, LOST]], "frozen": [[LOST, LOST]], "memory": [[RIGHT, RIGHT]]}
    _, _, rival = headline(compare({name: (own, [0.5], 1.0) for name, own in arms.items()}))
    how = "the rival of lower TotalDeg on this seed, chosen with hindsight"
    assert rival.note == f"Vote memory in 1 pair; {how}"


def test_effort_is_compared_on_the_seeds_that_both_have(make_trace):
    traces = [
        make_trace(arm, [[RIGHT]], [[0.5] * 9], norm, seeds=[seed])
        for arm, seed, norm in (("guard", 0, 1.0), ("guard", 1, 9.0), ("matched", 0, 1.1))
    ]
    traces.append(make_trace("ttrl", [[RIGHT]], [[0.5] * 9], 0.0, seeds=[0]))
    ((comparison,), _) = gather(traces)
    assert headline(comparison)[1].note == "the matched run moved 1.10 times as far as the guard's"
    assert metrics(comparison)["update"].isna().all(), "TTRL did not move"
