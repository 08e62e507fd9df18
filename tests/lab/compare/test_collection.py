import numpy as np
import pytest

from lab.base.errors import UserError
from lab.compare.collection import collect, find_runs, gather


@pytest.fixture
def make(make_trace):
    """A trace of two problems that keep one label accuracy and score."""

    def make(arm="ttrl", n_replicates=1, value=0.5, n_visits=9, **changes):
        accuracy = np.full((n_replicates, 2, n_visits), value)
        return make_trace(arm, accuracy, accuracy[:, 0], **changes)

    return make


@pytest.fixture
def write(tmp_path, make, save):
    return lambda place, *given, **changes: save(make(*given, **changes), tmp_path / place)


def test_runs_are_found_at_any_depth_and_each_once(tmp_path, write):
    first, second = write("a/b/one"), write("two", "guard")
    (first / "checkpoints" / "visits").mkdir(parents=True)
    (tmp_path / "a" / "empty").mkdir()
    write("a/two.old.tmp")  # the rest of a removal that was killed
    assert find_runs([tmp_path, tmp_path / "a", first]) == [first, second]


def test_folders_of_one_arm_are_joined_and_paired_by_seed(tmp_path, write):
    # Written in an order that is not that of the seeds; the guard lacks seed 5.
    for place, seed in enumerate((9, 2, 5)):
        write(f"real/ttrl/{place}", value=seed / 10, seeds=[seed], world="real")
    for place, seed in enumerate((2, 9)):
        write(f"real/guard/{place}", "guard", value=seed / 10, seeds=[seed], world="real")
    found = collect([tmp_path])
    assert not found.skipped
    (comparison,) = found.comparisons
    assert comparison.title == "Real model: test" and comparison.arms == ["ttrl", "guard"]
    assert [seed for seed, _ in comparison.pairs] == [2, 5, 9]
    for arm, replicates in (("ttrl", [0, 1, 2]), ("guard", [0, 2])):
        trace = comparison.traces[arm]
        assert trace.replicates == replicates and trace.visits["replicate"].dtype == np.int16
        values = trace.visits.groupby("replicate")["label_accuracy"].first()
        assert values.to_dict() == {r: comparison.pairs[r][0] / 10 for r in replicates}
        assert trace.run.seeds == [2, 5, 9]
        assert sorted(trace.steps["replicate"].unique()) == replicates
        assert sorted(trace.evals["replicate"].unique()) == replicates
        assert len(comparison.runs[arm]) == len(replicates)
        rows = [len(table) // len(replicates) for table in (trace.visits, trace.steps, trace.evals)]
        assert rows == [18, 8, 9] and len(trace.visits) == 18 * len(replicates)
    ((again,), _) = gather([*comparison.traces.values()])
    assert again.pairs == comparison.pairs and again.traces["guard"].replicates == [0, 2]
    assert len(comparison.fates("ttrl")) == 6
    assert comparison.fates("ttrl") is comparison.fates("ttrl")


def test_one_seed_with_many_replicates_pairs_by_their_place(make):
    ((comparison,), skipped) = gather([make("guard", 3, seeds=[7]), make("ttrl", 2, seeds=[7])])
    assert not skipped
    assert comparison.arms == ["ttrl", "guard"] and comparison.pairs == [(7, 0), (7, 1), (7, 2)]
    assert comparison.traces["ttrl"].replicates == [0, 1]


def test_one_seed_per_replicate(make):
    ((comparison,), _) = gather([make("ttrl", 3, seeds=[4, 4, 1]), make("guard", seeds=[4])])
    assert comparison.pairs == [(1, 0), (4, 0), (4, 1)]
    assert comparison.traces["guard"].replicates == [1]


def test_worlds_and_tasks_are_compared_apart(make):
    traces = [make(world="real"), make(), make(task="other"), make(n_votes=32)]
    traces += [make("zeta"), make("truth")]
    comparisons, skipped = gather(traces)
    assert not skipped
    assert [comparison.title for comparison in comparisons] == [
        "Simulator: other",
        "Simulator: test, 2 problems, 32 votes",
        "Simulator: test, 2 problems, 64 votes",
        "Real model: test",
    ]
    assert comparisons[2].arms == ["ttrl", "truth", "zeta"]


def test_a_repeated_seed_is_skipped_with_its_reason(tmp_path, write):
    first, second = write("one"), write("two", value=0.9)
    found = collect([tmp_path])
    (skipped,) = found.skipped
    assert skipped.folder == second
    assert f"repeats seed 0 of arm ttrl, already read from {first}" in skipped.reason
    assert set(found.comparisons[0].traces["ttrl"].visits["label_accuracy"]) == {0.5}


def test_nothing_good_is_an_error(write):
    with pytest.raises(UserError, match="no folder: no run in it"):
        collect([])
    with pytest.raises(UserError, match="not a folder"):
        collect([write("only") / "run.json"])


def test_arms_of_different_length_are_told(make):
    ((comparison,), _) = gather([make(n_visits=11), make("guard")])
    assert "the arms differ in length: TTRL 10 epochs, TTRL-Guard 8 epochs" in comparison.notes
