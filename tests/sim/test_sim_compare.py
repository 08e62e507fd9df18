"""Paired arms and the control at matched effort."""

import pytest

from lab import UserError, load
from lab.base.arms import arm
from lab.compare.effort import achieved_ratio
from sim import SimConfig
from sim.studies.compare import compare

CONFIG = SimConfig(n_problems=40, epochs=10, replicates=3, step=0.2, seed=2)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "new"
    arms = [arm(name) for name in ("matched", "ttrl", "guard", "frozen", "memory")]
    return out, compare(CONFIG, arms, out)


def test_every_arm_leaves_its_folder_in_the_given_order(compared):
    out, traces = compared
    assert list(traces) == ["matched", "ttrl", "guard", "frozen", "memory"]
    for name in traces:
        run = load(out / name).run
        assert run.arm == name and run.seeds == [2] and run.task == "llama-math500"


def test_matched_effort_is_matched_and_says_how_well(compared):
    _, traces = compared
    facts = traces["matched"].run.extra
    ratio = achieved_ratio(traces["matched"].steps, traces["guard"].steps)
    assert facts["achieved_ratio"] == pytest.approx(ratio)
    assert ratio == pytest.approx(1, abs=0.02)
    assert traces["matched"].run.config["step_factor"] == facts["step_factor"]
    lr = traces["matched"].steps["lr"] / traces["ttrl"].steps["lr"]
    assert lr.to_numpy() == pytest.approx(facts["step_factor"])


def test_arms_start_from_the_same_votes(compared):
    _, traces = compared
    starts = [trace.visits[trace.visits["visit"] == 0] for trace in traces.values()]
    assert all(start.equals(starts[0]) for start in starts)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one"),
        (["ttrl", "ttrl"], "ttrl is there twice"),
        (["guard", "matched"], "matched needs ttrl and guard"),
        (["ttrl", "recommended"], "kl_coef: only policy = measured reads it"),
    ],
)
def test_wrong_lists_of_arms(names, message, tmp_path):
    with pytest.raises(UserError, match=message):
        compare(CONFIG, [arm(name) for name in names], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_used_folder_is_left_alone(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        compare(CONFIG, [arm("ttrl")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
