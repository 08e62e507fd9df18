"""Arms at matched effort and replayed decisions, trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import QUICK, WORDS, run_folder

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.trace.trace import load
from real import train
from real.__main__ import main
from real.compare import CLOSE, MAX_TRIES, compare


def test_comparison_is_paired_and_matches_the_effort(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A guard that always skips half of the batch needs a much smaller step to be matched."""
    arms = ("ttrl", "guard", "matched")
    words = ["--seeds", "3", "5", "--arms", *arms, "--epochs", "2", "--lr", "1e-3", "--quiet"]
    assert main(["compare", "--out", str(tmp_path / "all"), *words, *WORDS]) == 0
    said = capsys.readouterr()
    assert "TTRL: pass@1" in said.out and "(2 seeds)" in said.out and "matched effort" in said.out
    traces = {
        (name, seed): load(run_folder(tmp_path / "all", name, seed))
        for name in arms
        for seed in (3, 5)
    }
    for (name, seed), trace in traces.items():
        assert trace.run.arm == name and trace.run.seeds == [seed]
        assert trace.run.status == "finished"
        first = trace.visits[trace.visits["visit"] == 0]
        base = traces["ttrl", seed].visits
        np.testing.assert_array_equal(first["label"], base[base["visit"] == 0]["label"])
    extra = [traces["matched", seed].run.extra for seed in (3, 5)]
    assert extra[0]["step_factor"] == extra[1]["step_factor"] > 0
    assert extra[0]["achieved_ratio"] == extra[1]["achieved_ratio"] > 0
    guard = np.concatenate([traces["guard", s].steps["update_norm"] for s in (3, 5)]).mean()
    base = np.concatenate([traces["ttrl", s].steps["update_norm"] for s in (3, 5)]).mean()
    assert extra[0]["matched_tries"] > 1 or extra[0]["step_factor"] == pytest.approx(guard / base)
    assert abs(extra[0]["achieved_ratio"] - 1) < CLOSE or extra[0]["matched_tries"] == MAX_TRIES
    assert not list((tmp_path / "all").glob(".*"))
    assert not list((tmp_path / "all").rglob("*.log"))


def test_matched_arm_leaves_out_seeds_whose_partners_failed(tmp_path: Path):
    config = replace(QUICK, epochs=1)
    arms = ("ttrl", "guard", "matched")
    (tmp_path / "all" / "guard").mkdir(parents=True)
    (tmp_path / "all" / "guard" / "seed-1.log").mkdir()  # its process cannot open its log
    result = compare(config, tmp_path / "all", arms, (0, 1), 2)
    messages = {outcome.job.name: outcome.error or "" for outcome in result.failed}
    assert set(messages) == {"guard, seed 1", "matched, seed 1"}
    assert "did not finish" in messages["matched, seed 1"]
    assert [arm.seeds for arm in result.arms] == [[0, 1], [0], [0]]


BUSY = GuardConfig(flip_rate="instant", theta_MR=0.0, tau_FR=0.1, skip_share=0.5, W=2)
TREATED = ["weight", "beta", "skipped"]


def test_a_permuted_guard_treats_as_much_and_sees_the_same():
    still = replace(QUICK, epochs=4, lr=1e-12, guard=BUSY)  # votes of both runs are the same
    own, dealt = (train(replace(still, treatment=t), progress=False) for t in ("own", "permuted"))
    seen = ["step", "problem", "label", "flipped", "match_rate", "flip_rate", "n_minority"]
    assert own.visits[seen].equals(dealt.visits[seen])
    pairs = [
        [
            sorted(map(tuple, batch[TREATED].to_numpy(float)))
            for _, batch in t.visits.groupby("step")
        ]
        for t in (own, dealt)
    ]
    assert pairs[0] == pairs[1]
    assert (own.visits["weight"] != dealt.visits["weight"]).any()
    assert (dealt.visits["skipped"] == (dealt.visits["route"] == 3)).all()


def test_a_comparison_replays_the_next_seed(tmp_path: Path):
    name, target = "replayed: theta_MR=0, tau_FR=.1, W=2", "guard,W=2,tau_FR=0.1,theta_MR=0.0"
    with pytest.raises(UserError, match=r"replayed.* needs guard,W=2,tau_FR=0.1,theta_MR=0.0; add"):
        compare(QUICK, tmp_path, [name], [0, 1])
    with pytest.raises(UserError, match="needs two seeds, since each replays another one"):
        compare(QUICK, tmp_path, [name, target], [0])
    found = compare(QUICK, tmp_path, [name, target], [5, 3])
    assert not found.failed
    for seed, other in ((5, 3), (3, 5)):
        made = load(run_folder(tmp_path, "replayed,W=2,tau_FR=0.1,theta_MR=0.0", seed))
        source = load(run_folder(tmp_path, target, other))
        own, replayed = (
            t.visits[t.visits["visit"] > 0].sort_values(["visit", "problem"])[TREATED]
            for t in (source, made)
        )
        np.testing.assert_array_equal(own, replayed)
        assert made.run.arm == "replayed,W=2,tau_FR=0.1,theta_MR=0.0"
