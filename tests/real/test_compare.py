"""Arms times seeds in processes: pairing, matched effort, failures, Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.errors import UserError
from lab.trace.manifest import Manifest, encode, read_manifest
from lab.trace.trace import load
from real.cli import main
from real.compare import matched_effort
from real.compare.arms import ArmResult, compare, run_folder
from real.compare.jobs import Job, Outcome, _reason, run_jobs
from real.compare.matched_effort import CLOSE, MAX_TRIES, run_matched
from real.settings.config import TrainConfig

QUICK = TrainConfig(n_problems=8, n_votes=8, n_samples=4, epochs=2, eval_every=0, lr=1e-3)
WORDS = ["--n-problems", "8", "--n-votes", "8", "--n-samples", "4", "--eval-every", "0"]


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


def test_a_rule_under_the_guard_has_its_own_matched_effort(tmp_path: Path):
    arms = ("matched_srt+guard", "srt+guard", "srt")
    found = compare(replace(QUICK, epochs=1), tmp_path / "all", arms, [0], n_parallel=2)
    assert not found.failed and [arm.name for arm in found.arms] == list(arms)
    (match,) = found.matches
    assert (match.name, match.target) == ("matched_srt+guard", "srt+guard")
    traces = {name: load(run_folder(tmp_path / "all", name, 0)) for name in arms}
    norm = {name: trace.steps["update_norm"].mean() for name, trace in traces.items()}
    assert match.tries > 1 or match.step_factor == pytest.approx(norm["srt+guard"] / norm["srt"])
    assert match.achieved_ratio == pytest.approx(norm["matched_srt+guard"] / norm["srt+guard"])
    run = traces["matched_srt+guard"].run
    assert run.config["rule"] == "srt" and run.extra["achieved_ratio"] == match.achieved_ratio
    with pytest.raises(UserError, match=r"matched_srt\+guard needs srt and srt\+guard"):
        compare(QUICK, tmp_path / "b", ("matched_srt+guard", "srt"), [0])


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

    def run(jobs: list[Job], n_parallel: int, report: Callable[[float], None]) -> list[Outcome]:
        made.append(jobs[0].config.step_factor)
        for job in jobs if len(made) <= fails else ():
            job.folder.mkdir()
            size = {"n_problems": 1, "n_votes": 1}
            manifest = Manifest.new("real", job.arm, "", config={}, seeds=[0], **size)
            manifest.status = "finished"
            (job.folder / "run.json").write_bytes(encode(manifest))
            (job.folder / "factor").write_text(str(made[-1]))
        return [Outcome(job) for job in jobs]

    def steps(folder: Path, name: str, seeds: list[int]) -> pd.DataFrame:
        norm = {"ttrl": 1.0, "guard": 0.25}.get(name)
        if norm is None:
            norm = float((run_folder(folder, name, 0) / "factor").read_text()) ** power
        return pd.DataFrame({"replicate": [0], "update_norm": [norm], "n_problems": [8]})

    monkeypatch.setattr(matched_effort, "run_jobs", run)
    monkeypatch.setattr(matched_effort, "steps_of", steps)
    real_finished = matched_effort.finished
    monkeypatch.setattr(
        matched_effort,
        "finished",
        lambda folder, name, seed: name != "matched" or real_finished(folder, name, seed),
    )
    match, _ = run_matched(QUICK, tmp_path, "matched", [0, 1], 1, lambda _: None)
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


def test_learning_rates_are_compared_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--seeds", "0", "--arms", "ttrl", "--epochs", "1", "--quiet", *WORDS]
    place = str(tmp_path / "all")
    assert main(["compare", "--out", place, "--lrs", "1e-4", "0.01", *words]) == 0
    said = capsys.readouterr().out
    assert said.index("learning rate 0.0001") < said.index("learning rate 0.01")
    moved = [
        load(run_folder(tmp_path / "all" / f"lr-{lr}", "ttrl", 0)).steps["update_norm"].mean()
        for lr in ("0.0001", "0.01")
    ]
    assert moved[1] > 10 * moved[0]
    assert main(["compare", "--out", place, "--lrs", "1e-3", "0.01", *words]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (tmp_path / "all" / "lr-0.001").exists()
    assert main(["compare", "--out", place, "--lrs", "1e-5", "1e-5", *words]) == 2
    assert "lrs" in capsys.readouterr().err


def test_failing_and_killed_runs_are_told_and_the_others_go_on(tmp_path: Path):
    def job(name: str, **changes: object) -> Job:
        return Job(name, replace(QUICK, **changes), tmp_path / name)

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    jobs = [job("taken"), job("killed", epochs=1000), job("good")]
    pids: list[int] = []

    def kill_the_long_one(_: float) -> None:
        for child in multiprocessing.active_children():
            if child.name.startswith("killed") and not pids and child.pid:
                pids.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)

    taken, killed, good = run_jobs(jobs, 2, kill_the_long_one)
    assert "is not empty" in (taken.error or "")
    assert killed.error == "its process was killed by signal 9"
    assert good.error is None and load(good.job.folder).run.status == "finished"
    assert (tmp_path / "taken" / "mine.txt").read_text() == "mine"


def test_reason_of_a_silent_end_is_the_last_line_of_the_log(tmp_path: Path):
    log = tmp_path / "seed-0.log"
    assert _reason(1, log) == "its process ended with exit code 1: no message"
    log.write_text("Traceback (most recent call last):\n  ...\nMemoryError: too large\n\n")
    assert _reason(1, log) == "its process ended with exit code 1: MemoryError: too large"
    assert _reason(-9, log) == "its process was killed by signal 9"


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


def test_mistakes_that_all_runs_share_are_told_once(tmp_path: Path):
    bad = replace(QUICK, model=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="no such folder"):
        compare(bad, tmp_path / "all", ("ttrl",), (0,), 1)
    assert not (tmp_path / "all").exists()


def test_result_line_tells_mean_and_spread():
    result = ArmResult("ttrl", "TTRL", [0, 1], [0.5, 0.7], [0.4, 0.6])
    assert result.line == "TTRL: pass@1 0.600 -> 0.500 ± 0.141 (2 seeds)"
    assert ArmResult("ttrl", "TTRL", [], [], []).line == "TTRL: no run finished"


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGINT, True),  # as from a keyboard
        (signal.SIGTERM, False),
        (signal.SIGHUP, True),  # as from a terminal that is closed
    ],
)
def test_a_signal_stops_the_children_and_leaves_checkpoints(
    number: signal.Signals, to_all: bool, tmp_path: Path
):
    out = tmp_path / "all"
    words = ["--arms", "ttrl", "guard", "--seeds", "0", "--epochs", "500", "--quiet", *WORDS]
    command = [sys.executable, "-m", "real", "compare", "--out", str(out), *words]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    folders = [run_folder(out, name, 0) for name in ("ttrl", "guard")]
    deadline = time.monotonic() + 120
    while not all(list(f.glob("checkpoints/step-*[1-9]")) for f in folders):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + number, stderr
    assert len(stderr.strip().splitlines()) == 1, stderr
    for folder in folders:
        trace = load(folder)
        assert trace.run.status == "interrupted"
        assert (trace.visits["visit"] == 0).sum() == 8
        last = max(int(path.name[-6:]) for path in folder.glob("checkpoints/step-*"))
        assert trace.steps["step"].max() == last
    assert gone(process.pid), "a process of the comparison is still there"


def gone(group: int) -> bool:
    """True if a process group ends within some seconds; the server of processes ends last."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
