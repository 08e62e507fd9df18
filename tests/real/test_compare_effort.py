"""Arms at matched effort: pairing, the search for a factor, lost seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_runs import QUICK, WORDS

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.base.settings import to_values
from lab.trace.manifest import Manifest, encode, read_manifest
from lab.trace.trace import load
from real import train
from real.cli import main
from real.compare import matched_effort
from real.compare.arms import compare
from real.compare.matched_effort import CLOSE, MAX_TRIES, RunJobs, run_matched
from real.compare.runs import Job, Outcome, run_folder


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


@pytest.mark.parametrize(
    ("power", "fails", "n_tries", "kept"),
    [(1.0, 9, 1, 0.25), (2.0, 9, 2, 0.5), (2.0, 1, 1, 0.25), (2.0, 0, 0, None)],
)
def test_another_factor_is_tried_while_the_match_is_off(
    power: float,
    fails: int,
    n_tries: int,
    kept: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The fake arm moves by factor ** power; the guard by a quarter of the plain arm's way."""
    made: list[float] = []

    run = fake_runs(monkeypatch, made, power, lambda: len(made) <= fails)
    match, _ = run_matched(QUICK, tmp_path, "matched", [0, 1], run, lambda _: None)
    if kept is None:
        assert match is None
        return
    assert match and match.tries == n_tries and match.step_factor == pytest.approx(kept)
    assert match.achieved_ratio == pytest.approx(4 * kept**power)
    for seed in (0, 1):
        folder = run_folder(tmp_path, "matched", seed)
        assert (folder / "factor").read_text() == str(match.step_factor)
        extra = read_manifest(folder).extra
        assert (extra["achieved_ratio"], extra["matched_tries"]) == (match.achieved_ratio, n_tries)
    assert not list(tmp_path.glob(".*"))


def fake_runs(
    monkeypatch: pytest.MonkeyPatch, made: list[float], power: float, works: Callable[[], bool]
) -> RunJobs:
    """Runs that only note their factor; `made` gets the factor of each try."""

    def run(jobs: Sequence[Job], report: Callable[[float], None]) -> list[Outcome]:
        made.append(jobs[0].config.step_factor)
        for job in jobs if works() else ():
            if job.finished:
                continue
            job.folder.mkdir()
            size = {"n_problems": 1, "n_votes": 1}
            values = to_values(job.config)
            manifest = Manifest.new("real", job.arm, "", config=values, seeds=[0], **size)
            manifest.status = "finished"
            (job.folder / "run.json").write_bytes(encode(manifest))
            (job.folder / "factor").write_text(str(made[-1]))
        return [Outcome(job) for job in jobs]

    def steps(folder: Path, name: str, seeds: list[int]) -> pd.DataFrame:
        norm = {"ttrl": 1.0, "guard": 0.25}.get(name)
        if norm is None:
            norm = float((run_folder(folder, name, seeds[0]) / "factor").read_text()) ** power
        return pd.DataFrame({"replicate": [0], "update_norm": [norm], "n_problems": [8]})

    monkeypatch.setattr(matched_effort, "_steps_of", steps)
    real_finished = matched_effort.finished
    monkeypatch.setattr(
        matched_effort,
        "finished",
        lambda folder, name, seed: name != "matched" or real_finished(folder, name, seed),
    )
    return run


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
