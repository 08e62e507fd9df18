import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tiny_runs import QUICK, WORDS, held, of_file, run_folder

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.base.settings import from_values
from lab.study import Done, Job, Study
from lab.trace.manifest import command, read_manifest
from lab.trace.trace import RunFolder, load
from real import train
from real.__main__ import main
from real.compare import CLOSE, MAX_TRIES, _lines, compare
from real.jobs import find_places, run_jobs
from real.preflight import check_asked
from real.settings.config import TrainConfig
from real.settings.stored import manifest_of


def stop(_):
    raise KeyboardInterrupt


def test_the_same_comparison_goes_on(tmp_path, capsys):
    """Finished runs stay, begun ones go on, others start; other settings are refused by name."""
    out = tmp_path / "all"
    words = ["--out", str(out), "--seeds", "0", "--quiet", *WORDS, "--lr", "1e-3"]
    words += ["--epochs", "1", "--batch-size", "4", "--checkpoint-every", "1"]

    assert main(["compare", "--arms", "ttrl", *words]) == 0
    kept = (run_folder(out, "ttrl", 0) / "run.json").read_bytes()
    values = read_manifest(run_folder(out, "ttrl", 0)).config
    config = from_values(values, TrainConfig, "")
    with pytest.raises(KeyboardInterrupt):
        train(replace(config, guard=arm("guard").guard), run_folder(out, "guard", 0), stop)
    capsys.readouterr()
    assert main(["compare", "--arms", "ttrl", "guard", *words]) == 0
    assert "finished runs: 1, resumed runs: 1" in capsys.readouterr().err
    resumed = load(run_folder(out, "guard", 0)).run.extra["resumed"]
    assert [entry["step"] for entry in resumed] == [0]
    assert main(["compare", "--arms", "ttrl", "guard", *words]) == 0
    assert "finished runs: 2, resumed runs: 0" in capsys.readouterr().err
    assert (run_folder(out, "ttrl", 0) / "run.json").read_bytes() == kept
    words[words.index("--epochs") + 1] = "3"
    other = [*words, "--max-tokens-per-microbatch", "999"]
    assert main(["compare", "--arms", "ttrl", *other]) == 2
    err = capsys.readouterr().err
    assert "ttrl/seed-0: settings differ" in err and "epochs = 3 (was 1);" in err


def test_a_stopped_run_without_checkpoints_is_made_again(tmp_path):
    config = replace(TINY, guard=GuardConfig.off(), checkpoint_every=0)
    with pytest.raises(KeyboardInterrupt):
        train(config, run_folder(tmp_path, "ttrl", 0), stop)
    job = Job("ttrl", config, run_folder(tmp_path, "ttrl", 0))
    again = partial(compare, replace(TINY, checkpoint_every=0), tmp_path, ["ttrl"], [0], 1)
    written = "another process writes this run"
    with held(job.folder):
        (outcome,) = run_jobs([job])
        with pytest.raises(UserError, match=written):  # at once
            again()
    assert written in (outcome.error or "") and not again()[1]
    run = load(run_folder(tmp_path, "ttrl", 0)).run
    assert run.status == "finished" and "resumed" not in run.extra


def test_learning_rates_are_compared_one_by_one(tmp_path, capsys):
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
    for other in ("1e-5", "1.0000001e-5"):  # of one folder
        assert main(["compare", "--out", place, "--lrs", "1e-5", other, *words]) == 2
        assert "lrs: the list names one twice" in capsys.readouterr().err


def test_true_labels_need_answers_before_any_run_starts(tmp_path):
    settings = of_file(tmp_path)
    rows = json.loads((tmp_path / "set.json").read_text())
    (tmp_path / "set.json").write_text(json.dumps([*rows[:3], {**rows[3], "answer": None}]))
    config = replace(QUICK, **settings, n_problems=4)
    assert check_asked(config, ("ttrl",), (0,))[0]
    with pytest.raises(UserError, match=r"labels = 'truth': problem .* has no answer"):
        check_asked(config, ("ttrl", "truth"), (0,))
    (tmp_path / "set.json").write_text(json.dumps([{**row, "answer": None} for row in rows]))
    lines, _ = compare(replace(config, epochs=1), tmp_path / "all", ("ttrl",), (0,), 1)
    assert lines[0].startswith("TTRL: no true answers (1 seed), unread ")


def test_failing_and_killed_runs_are_reported_and_the_others_go_on(tmp_path):
    def job(name, **changes):
        return Job(name, replace(QUICK, **changes), tmp_path / name)

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    jobs = [job("taken"), job("killed", epochs=1000), job("good")]
    pids = []

    def kill_the_long_one(_):
        for child in multiprocessing.active_children():
            if child.name.startswith("killed") and not pids and child.pid:
                pids.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)

    taken, killed, good = run_jobs(jobs, [(), ()], kill_the_long_one)
    assert "is not empty" in (taken.error or "")
    assert killed.error == "its process was killed by signal 9"
    assert good.error is None and load(good.job.folder).run.status == "finished"
    assert (tmp_path / "taken" / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_signal_stops_the_children_and_leaves_checkpoints(tmp_path):
    """SIGHUP to all, as from a terminal that is closed."""
    out = tmp_path / "all"
    words = ["--arms", "ttrl", "guard", "--seeds", "0", "--epochs", "500", "--quiet", *WORDS]
    command = [sys.executable, "-m", "real", "compare", "--out", str(out), *words]
    # Under nohup SIGHUP is ignored, and a new process takes that over.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    signal.signal(signal.SIGHUP, inherited)
    folders = [run_folder(out, name, 0) for name in ("ttrl", "guard")]
    deadline = time.monotonic() + 120
    while not all(list(f.glob("checkpoints/step-*[1-9]")) for f in folders):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGHUP)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGHUP, stderr
    advice, ended = stderr.strip().splitlines()
    assert advice == "guard-train: notice: to go on: the same command" and "interrupted" in ended
    for folder in folders:
        trace = load(folder)
        assert trace.run.status == "interrupted"
        assert (trace.visits["visit"] == 0).sum() == 8
        last = max(int(path.name[-6:]) for path in folder.glob("checkpoints/step-*"))
        assert trace.steps["step"].max() == last
    for _ in range(200):  # the server of processes ends last
        time.sleep(0.1)
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
    pytest.fail("a process of the comparison is still there")


TINY = replace(QUICK, n_problems=2, batch_size=2, n_votes=4, n_samples=2, epochs=1)
TINY = replace(TINY, max_response_tokens=2, eval_samples=1)


def test_gpus_are_dealt_to_as_many_runs_as_they_hold_others_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7,GPU-8f,9,11")
    assert find_places("auto", None, 2) == ([("4", "7"), ("GPU-8f", "9")], [])
    assert find_places("cuda", 1, 2) == ([("4", "7")], [])
    assert find_places("auto", None, 1)[0] == [("4",), ("7",), ("GPU-8f",), ("9",), ("11",)]
    assert find_places("cpu", 3, 1) == ([(), (), ()], [])
    places, (notice,) = find_places("auto", 4, 2)
    assert len(places) == 2 and notice.endswith("(gpus_per_run = 2); the others wait")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UserError, match="gpus_per_run = 2: there are 0 GPUs"):
        compare(TINY, tmp_path / "all", ["ttrl"], [0], gpus_per_run=2)
    assert not (tmp_path / "all").exists()  # refused before any run


def test_a_comparison_hashes_the_model_once_however_many_runs_were_begun(tmp_path, monkeypatch):
    config, hashed = replace(QUICK, **of_file(tmp_path), n_problems=4), []
    for lr, seed in itertools.product((1e-4, 1e-3), (0, 1)):
        own = with_arm(replace(config, lr=lr, seed=seed), arm("ttrl"))
        manifest = manifest_of(own, 4, "set", "", sources={"model": {"x": "as then"}})
        RunFolder.create(run_folder(tmp_path / f"all/lr-{lr:g}", "ttrl", seed), manifest)
    monkeypatch.setattr(Study, "run", lambda *_: Done())
    monkeypatch.setattr(
        "real.compare.model_digests", lambda _: hashed.append(0) or {"x": "as then"}
    )
    again = partial(compare, config, tmp_path / "all", ["ttrl"], [0, 1], lrs=[1e-4, 1e-3])
    assert again()[0][1] == "TTRL: no run finished" and hashed == [0]
    monkeypatch.setattr("real.compare.model_digests", lambda _: {"x": "other"})
    with pytest.raises(UserError, match=r"seed-0: the content has changed .*\(x\)"):
        again()


@pytest.mark.slow  # processes start from nothing, as they do beside CUDA
def test_each_run_sees_its_own_gpus(tmp_path):
    """The ranks of torchrun on a place of two GPUs."""
    (tmp_path / "ttrl").mkdir()
    job = Job("ttrl", with_arm(TINY, arm("ttrl")), run_folder(tmp_path, "ttrl", 0))
    shares = []
    (outcome,) = run_jobs([job], [("7", "GPU-8f")], shares.append)
    assert outcome.error is None
    run = read_manifest(job.folder)
    assert (run.extra["gpus"], run.backend) == ("7,GPU-8f", "transformers on 2 x cpu")
    assert run.status == "finished" and shares[-1] == 1 and run.command == command()


def test_comparison_is_paired_and_matches_the_effort(tmp_path, capsys):
    """A guard that always skips half of the batch needs a much smaller step to be matched."""
    arms = ("ttrl", "guard", "matched")
    words = ["--seeds", "3", "5", "--arms", *arms, "--epochs", "2", "--lr", "1e-3", "--quiet"]
    assert main(["compare", "--out", str(tmp_path / "all"), *words, *WORDS]) == 0
    said = capsys.readouterr()
    assert "TTRL: pass@1" in said.out and "(2 seeds)" in said.out and "matched effort" in said.out
    evals = [load(run_folder(tmp_path / "all", "ttrl", seed)).evals for seed in (3, 5)]
    vote, final = (
        100 * np.mean([own[column].iloc[place] for own in evals])
        for column, place in (("maj_accuracy", 0), ("pass_at_1", -1))
    )
    assert f"Vote before training: right {vote / 100:.3f} ± " in said.out
    assert f"minus the vote {final - vote:+.1f} points [95 % interval" in said.out
    runs = list(itertools.product(arms, (3, 5)))
    traces = {run: load(run_folder(tmp_path / "all", *run)) for run in runs}
    for (name, seed), trace in traces.items():
        assert trace.run.arm == name and trace.run.seeds == [seed]
        assert trace.run.status == "finished"
        first = trace.visits[trace.visits["visit"] == 0]
        base = traces["ttrl", seed].visits
        np.testing.assert_array_equal(first["label"], base[base["visit"] == 0]["label"])
    extra = traces["matched", 3].run.extra
    assert abs(extra["achieved_ratio"] - 1) < CLOSE or extra["matched_tries"] == MAX_TRIES
    assert not list((tmp_path / "all").rglob("*.log"))


def test_an_arm_without_training_is_scored_by_its_vote(tmp_path, capsys):
    """As in the report: not by single responses, which the difference to the vote is not of."""
    words = ["--seeds", "3", "--arms", "maj_at_n", "--epochs", "2", "--quiet"]
    assert main(["compare", "--out", str(tmp_path / "all"), *words, *WORDS]) == 0
    trace = load(run_folder(tmp_path / "all", "maj_at_n", 3))
    last = trace.visits[trace.visits["visit"] == 2]["label_correct"].mean()
    start, vote = trace.evals["pass_at_1"].iloc[0], trace.evals["maj_accuracy"].iloc[0]
    said = capsys.readouterr().out
    assert trace.evals["pass_at_1"].iloc[-1] != last
    assert f"pass@1 {start:.3f} -> {last:.3f} (1 seed)" in said
    assert f"minus the vote {100 * (last - vote):+.1f} points" in said


def test_the_vote_is_that_of_the_arm_with_most_seeds(tmp_path):
    quick = replace(QUICK, epochs=1)
    compare(quick, tmp_path, ["ttrl"], [3])  # as if that of seed 5 had failed
    compare(quick, tmp_path, ["memory"], [3, 5])
    study = Study(
        folder=tmp_path,
        arms=["ttrl", "memory"],
        seeds=[3, 5],
        config_of=lambda name: with_arm(quick, arm(name)),
        run_jobs=lambda jobs, _: [],
    )
    vote, ttrl, memory = _lines(study)
    assert vote.startswith("Vote before training") and "(2 seeds)" in vote
    assert "(1 seed)" in ttrl and "(2 seeds)" in memory


BUSY = GuardConfig().set(flip_rate="instant", theta_MR=0.0, tau_FR=0.1, skip_share=0.5, W=2)
TREATED = ["weight", "beta", "skipped"]


def test_a_permuted_guard_treats_as_much_and_sees_the_same():
    still = replace(QUICK, epochs=4, lr=1e-12, guard=BUSY)  # votes of both runs are the same
    own, dealt = (train(replace(still, treatment=t), progress=False) for t in ("own", "permuted"))
    seen = ["step", "problem", "label", "flipped", "match_rate", "flip_rate", "n_minority"]
    assert own.visits[seen].equals(dealt.visits[seen])
    columns = ["step", *TREATED]
    first, second = (t.visits.sort_values(columns)[columns].to_numpy(float) for t in (own, dealt))
    np.testing.assert_array_equal(first, second)
    assert (own.visits["weight"] != dealt.visits["weight"]).any()
    assert (dealt.visits["skipped"] == (dealt.visits["route"] == 3)).all()


def test_a_comparison_replays_the_next_seed(tmp_path):
    name, target = "replayed: theta_MR=0, tau_FR=.1, W=2", "guard,W=2,tau_FR=0.1,theta_MR=0.0"
    _, failed = compare(QUICK, tmp_path, [name, target], [5, 3])
    assert not failed
    for seed, other in ((5, 3), (3, 5)):
        made = load(run_folder(tmp_path, "replayed,W=2,tau_FR=0.1,theta_MR=0.0", seed))
        source = load(run_folder(tmp_path, target, other))
        own, replayed = (
            t.visits[t.visits["visit"] > 0].sort_values(["visit", "problem"])[TREATED]
            for t in (source, made)
        )
        np.testing.assert_array_equal(own, replayed)
        assert made.run.arm == "replayed,W=2,tau_FR=0.1,theta_MR=0.0"
