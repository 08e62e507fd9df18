import shutil
from dataclasses import replace

import numpy as np
import pytest

from lab.base.errors import UserError
from lab.compare.collection import collect, find_runs, gather
from lab.trace.trace import RunFolder


def accuracy(n_replicates=1, value=0.5, n_visits=9):
    return np.full((n_replicates, 2, n_visits), value)


def scores(n_replicates=1, value=0.5, n_visits=9):
    return np.full((n_replicates, n_visits), value)


@pytest.fixture
def write(tmp_path, make_trace, save):
    def write(place, arm="ttrl", value=0.5, n_replicates=1, n_visits=9, **changes):
        trace = make_trace(
            arm,
            accuracy(n_replicates, value, n_visits),
            scores(n_replicates, value, n_visits),
            **changes,
        )
        return save(trace, tmp_path / place)

    return write


def test_runs_are_found_at_any_depth_and_each_once(tmp_path, write):
    first, second = write("a/b/one"), write("two", arm="guard")
    (first / "checkpoints" / "visits").mkdir(parents=True)
    (tmp_path / "a" / "empty").mkdir()
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
    assert comparison.title == "Real model: test"
    assert comparison.arms == ["ttrl", "guard"]
    assert [seed for seed, _ in comparison.pairs] == [2, 5, 9]
    for arm, replicates in (("ttrl", [0, 1, 2]), ("guard", [0, 2])):
        trace = comparison.traces[arm]
        assert trace.replicates == replicates
        assert trace.visits["replicate"].dtype == np.int16
        values = trace.visits.groupby("replicate")["label_accuracy"].first()
        assert values.to_dict() == {r: comparison.pairs[r][0] / 10 for r in replicates}
        assert trace.run.seeds == [comparison.pairs[r][0] for r in replicates]
        assert sorted(trace.steps["replicate"].unique()) == replicates
        assert sorted(trace.evals["replicate"].unique()) == replicates
        assert len(comparison.runs[arm]) == len(replicates)
    assert len(comparison.fates("ttrl")) == 6
    assert comparison.fates("ttrl") is comparison.fates("ttrl")


def test_one_seed_with_many_replicates_pairs_by_their_place(make_trace):
    traces = [
        make_trace("guard", accuracy(3), scores(3), seeds=[7]),
        make_trace("ttrl", accuracy(2), scores(2), seeds=[7]),
    ]
    ((comparison,), skipped) = gather(traces)
    assert not skipped
    assert comparison.arms == ["ttrl", "guard"]
    assert comparison.pairs == [(7, 0), (7, 1), (7, 2)]
    assert comparison.traces["ttrl"].replicates == [0, 1]


def test_one_seed_per_replicate(make_trace):
    ((comparison,), _) = gather(
        [
            make_trace("ttrl", accuracy(3), scores(3), seeds=[4, 4, 1]),
            make_trace("guard", accuracy(1), scores(1), seeds=[4]),
        ]
    )
    assert comparison.pairs == [(1, 0), (4, 0), (4, 1)]
    assert comparison.traces["guard"].replicates == [1]


def test_worlds_and_tasks_are_compared_apart(make_trace):
    traces = [
        make_trace("ttrl", accuracy(), scores(), world="real"),
        make_trace("ttrl", accuracy(), scores()),
        make_trace("ttrl", accuracy(), scores(), task="other"),
        make_trace("ttrl", accuracy(), scores(), n_votes=32),
        make_trace("zeta", accuracy(), scores()),
        make_trace("truth", accuracy(), scores()),
    ]
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


def test_bad_folders_are_skipped_with_a_reason(tmp_path, write):
    write("good")
    for name in ("damaged", "foreign", "newer", "headless"):
        write(name, arm=name)
    (tmp_path / "damaged" / "visits" / "part-00000.parquet").write_bytes(b"x")
    (tmp_path / "foreign" / "run.json").write_text("{}")
    newer = tmp_path / "newer" / "run.json"
    newer.write_text(newer.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    (tmp_path / "headless" / "run.json").unlink()
    found = collect([tmp_path])
    assert found.comparisons[0].arms == ["ttrl"]
    reasons = {skipped.folder.name: skipped.reason for skipped in found.skipped}
    for name, reason in (
        ("damaged", "is damaged"),
        ("foreign", "not of this program"),
        ("newer", "upgrade"),
        ("headless", "run.json is missing"),
    ):
        assert reason in reasons.pop(name)
    assert not reasons


def test_nothing_good_is_an_error(tmp_path, write):
    with pytest.raises(UserError, match="no such folder"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no run in it"):
        collect([tmp_path])
    with pytest.raises(UserError, match="no folder: no run in it"):
        collect([])
    folder = write("only")
    with pytest.raises(UserError, match="not a folder"):
        collect([folder / "run.json"])
    (folder / "visits" / "part-00000.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match="is damaged"):
        collect([folder])
    shutil.rmtree(folder / "visits")
    with pytest.raises(UserError, match="visits has 0 of 18 rows"):
        collect([folder])


def test_unfinished_runs_are_told(tmp_path, make_trace):
    trace = make_trace("ttrl", accuracy(), scores(), seeds=[3])
    run = RunFolder.create(tmp_path / "run", trace.run)
    run.write_visits({name: trace.visits[name].to_numpy() for name in trace.visits})
    run.note(progress=0.4)
    run.finish("interrupted")
    (comparison,) = collect([tmp_path]).comparisons
    assert comparison.notes == ["TTRL, seed 3: interrupted at 40% of its steps"]
    running = replace(trace, run=replace(trace.run, status="running", progress=0.25))
    ((comparison,), _) = gather([running])
    assert comparison.notes == ["TTRL, seed 3: running or killed at 25% of its steps"]


def test_arms_of_different_length_are_told(make_trace):
    ((comparison,), _) = gather(
        [
            make_trace("ttrl", accuracy(n_visits=11), scores(n_visits=11)),
            make_trace("guard", accuracy(), scores()),
        ]
    )
    assert "the arms differ in length: TTRL 10 epochs, TTRL-Guard 8 epochs" in comparison.notes
