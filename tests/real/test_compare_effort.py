"""Arms at matched effort: pairing, the search for a factor, lost seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_runs import QUICK, WORDS

from lab.compare.collection import find_runs
from lab.errors import UserError
from lab.settings import to_values
from lab.trace.manifest import Manifest, encode, read_manifest
from lab.trace.trace import load
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


def test_a_stopped_search_goes_on_at_the_try_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[float] = []

    def works() -> bool:
        if len(made) == 2:
            raise KeyboardInterrupt
        return True

    run = fake_runs(monkeypatch, made, 2.0, works)
    with pytest.raises(KeyboardInterrupt):
        run_matched(QUICK, tmp_path, "matched", [0], run, lambda _: None)
    assert find_runs([tmp_path]) == []  # a report leaves the search out
    match, lost = run_matched(QUICK, tmp_path, "matched", [0], run, lambda _: None)
    assert made == pytest.approx([0.25, 0.5, 0.5]) and not lost
    assert match and (match.tries, match.step_factor) == (2, pytest.approx(0.5))
    assert not list(tmp_path.glob(".*"))
    # Seeds that are added are run at the factor that was found.
    again, _ = run_matched(QUICK, tmp_path, "matched", [0, 1], run, lambda _: None)
    assert again == match and made[3:] == pytest.approx([0.5])
    assert [
        read_manifest(run_folder(tmp_path, "matched", s)).extra["matched_tries"] for s in (0, 1)
    ]


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
