import itertools
import json
import os
import random
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import SMALL, Stopped, check_same, held, of_file, stop_at

from guard_core import GuardConfig
from lab.base.errors import Terminated, UserError
from lab.base.settings import to_values
from lab.trace.manifest import locked
from lab.trace.trace import load
from real import resume, train
from real.__main__ import main
from real.model.policy import load_policy
from real.tiny import CHECKPOINT


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory):
    """A run that failed in its third batch of four, after a checkpoint at the second."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    with pytest.raises(Stopped):
        train(SMALL, folder, progress=stop_at(0.75))
    return folder


@pytest.fixture
def broken(broken_run, tmp_path):
    shutil.copytree(broken_run, tmp_path / "run")
    return tmp_path / "run"


BRAKED = GuardConfig.off().set(brake=0.5, brake_on="match_rate", brake_above=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_rank": 4},
        {"dtype": "bfloat16", "ema_decay": 0.9},
        # The reference is the model before training, not the checkpoint's.
        {"kl_coef": 0.1, "mini_batch": 2, "batch_size": 3},
        {"guard": BRAKED.set(label_from="memory", margin_power=1, min_share=0.3)},
    ],
    ids=str,
)
def test_other_ways_to_train_go_on_to_the_bit_too(changes, tmp_path):
    if "lora_rank" in changes:
        pytest.importorskip("peft")
    config = replace(SMALL, save_model=True, **changes)
    uninterrupted = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", progress=stop_at(0.75))
    check_same(resume(tmp_path / "run", progress=False), uninterrupted)
    saved = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "run")]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    # A whole model, adapters merged in: loading refuses one that lacks a weight.
    trained, start = (
        dict(load_policy(folder, "cpu").model.named_parameters())
        for folder in (tmp_path / "run" / "model", CHECKPOINT)
    )
    assert trained.keys() == start.keys()
    assert any(not torch.equal(trained[name].float(), start[name].float()) for name in start)


def test_the_command_goes_on_and_leaves_a_finished_run_alone(broken, capsys):
    whole = train(SMALL, progress=False)
    text = (broken / "run.json").read_text()
    text = text.replace('"extra": {', '"extra": {"faults": {},')  # since the checkpoint
    (broken / "run.json").write_text(re.sub('"torch": ".*"', '"torch": "1.0"', text))
    assert main(["resume", str(broken), "--quiet", "--max-rows", "16"]) == 0
    said = capsys.readouterr()
    assert "pass@1 0." in said.out and said.err.count("\n") == 1
    assert " goes on with torch " in said.err and " (was 1.0); the numbers may" in said.err
    check_same(load(broken), whole)
    run = load(broken).run
    assert (run.status, run.progress, run.config["max_rows"]) == ("finished", 1.0, 16)
    assert "faults" not in run.extra
    before = {p: p.stat().st_mtime_ns for p in broken.rglob("*.*") if p.is_file()}
    assert main(["resume", str(broken)]) == 0
    nothing = "the run is finished, nothing is left to do"
    assert nothing in capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in before}
    assert {p.name for p in before if after[p] != before[p]} <= {".lock"}
    for told, name in ((False, "trial-1"), (True, "trial-2")):  # the second time it has its model
        (broken / name).mkdir()
        (broken / "run.json.1-1.tmp").touch()
        assert main(["resume", str(broken), "--save-model", "--quiet"]) == 0
        assert (nothing in capsys.readouterr().out) == told
    assert load_policy(broken / "model", "cpu") and not (broken / "trial-1").exists()
    check_same(load(broken), whole)
    values = json.loads((broken / "run.json").read_text())
    del values["extra"]["evaluation"]  # as in a run of another trainer
    (broken / "run.json").write_text(json.dumps(values))
    assert main(["resume", str(broken)]) == 0 and nothing in capsys.readouterr().out


def test_settings_of_another_run_are_refused_with_their_names(broken, capsys):
    before = (broken / "run.json").read_bytes()
    words = ["--lr", "0.1", "--guard.W", "3", "--epochs", "9", "--threads", "1"]
    assert main(["resume", str(broken), *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for change in ("epochs = 9 (was 2)", "guard.W = 3 (was 5)", "lr = 0.1 (was 0.0003)"):
        assert change in line
    assert "threads" not in line
    assert (broken / "run.json").read_bytes() == before
    # Those edited in the folder, too.
    values = json.loads(before)
    values["config"]["n_votes"] = 16
    (broken / "run.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"n_votes = 16 \(was 8\)"):
        resume(broken, progress=False)


def test_changed_problems_and_models_are_refused_moved_ones_are_not(tmp_path):
    shutil.copytree(CHECKPOINT, tmp_path / "model")
    settings = of_file(tmp_path) | {"model": str(tmp_path / "model")}
    config, out = replace(SMALL, **settings), tmp_path / "run"
    with pytest.raises(Stopped):
        train(config, out, progress=stop_at(0.5))
    files = sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())
    rows = json.loads((tmp_path / "set.json").read_text())
    changed = [{**rows[0], "answer": "77"}, *rows[1:]]
    (tmp_path / "set.json").write_text(json.dumps(changed))
    with pytest.raises(UserError, match="problems: changed since the run was started"):
        resume(out, progress=False)
    (tmp_path / "set.json").write_text(json.dumps(rows))
    generation = tmp_path / "model" / "generation_config.json"
    old = generation.read_text()
    generation.write_text(old + " ")
    with pytest.raises(UserError, match=r"model .*changed .*\(generation_config.json\)"):
        resume(out, progress=False)
    generation.write_text(old)
    left = {p.relative_to(out) for p in out.rglob("*") if p.is_file()}
    assert left == {*files, Path(".lock")}
    (tmp_path / "model").rename(tmp_path / "moved")
    moved = replace(config, model=str(tmp_path / "moved"))
    assert resume(out, moved, progress=False).run.status == "finished"


def test_a_run_without_checkpoints_cannot_go_on(tmp_path):
    with pytest.raises(Stopped):
        train(replace(SMALL, checkpoint_every=0), tmp_path / "run", progress=stop_at(0.5))
    assert not (tmp_path / "run" / "checkpoints").exists()
    with pytest.raises(UserError, match="holds no checkpoint"):
        resume(tmp_path / "run", progress=False)


def test_a_run_that_is_being_written_cannot_be_resumed(broken):
    with held(broken), pytest.raises(UserError, match="another process writes this run"):
        resume(broken, progress=False)
    with locked(broken):  # the hold went with the process
        pass


def test_a_stopped_run_writes_a_checkpoint_where_it_is(tmp_path, capfd):
    """Only each epoch's end has a checkpoint by itself, and the epoch here does not end."""

    def press(done):
        if done > 0.2:
            signal.raise_signal(signal.SIGTERM)

    out, config = tmp_path / "run", replace(SMALL, batch_size=1, checkpoint_every=None)
    with pytest.raises(Terminated):
        train(config, out, progress=press)
    assert "stopping after this batch" in capfd.readouterr().err
    stopped = load(out)
    assert (stopped.run.status, stopped.run.progress) == ("interrupted", 2 / 8)
    assert stopped.steps["step"].tolist() == [1, 2]
    assert {p.name for p in (out / "checkpoints").iterdir()} == {"step-000000", "step-000002"}


pytestmark = pytest.mark.skipif(os.name != "posix", reason="runs are forked and killed")

CONFIG = replace(SMALL, save_model=True)
"""Four batches, a checkpoint after each: so that most changes of files belong to checkpoints."""


def check_equal(folder, other):
    """Trace, last checkpoint, trained model and completions, to the bit."""
    first, second = load(folder), load(other)
    assert first.run.status == second.run.status == "finished"
    check_same(first, second)
    extra = dict(first.run.extra)
    extra.pop("resumed", None)
    assert extra == second.run.extra
    kept = {p.name for p in (folder / "checkpoints").iterdir()}
    assert kept == {p.name for p in (other / "checkpoints").iterdir()}
    names = ["model.safetensors", "optimizer.safetensors", "guard.safetensors", "answers.json"]
    paths = [Path("checkpoints", "step-000004", name) for name in names]
    paths += [Path("model", "model.safetensors")]
    paths += [p.relative_to(other) for p in (other / "completions").iterdir()]
    for path in paths:
        assert (folder / path).read_bytes() == (other / path).read_bytes(), path


def test_killed_before_any_change_of_its_files(ranks, tmp_path):
    """At moments spread over the whole run; then again while it is resumed, then it may end."""
    counted = tmp_path / "changes"

    def run(name, do, kill_at=None):
        fault = {"rank": 0, "what": "change", "call": kill_at, "counted": str(counted)}
        return ranks(name, to_values(CONFIG), 1, do, fault)

    whole = run("whole", "train")
    n_changes = int(counted.read_text())
    assert whole.codes == [0] and n_changes > 60
    dice = random.Random(7)
    # The first changes make the folder: before there is a run.json, there is no run to resume.
    bounds = [10 + i * (n_changes - 10) // 3 for i in range(4)]
    for place, pair in enumerate(itertools.pairwise(bounds)):
        name = f"run-{place}"
        assert run(name, "train", dice.randrange(*pair)).codes == [-9]
        assert run(name, "resume", dice.randrange(1, 40)).codes in ([-9], [0])
        resumed = run(name, "resume")
        assert resumed.codes == [0], resumed.lines
        check_equal(resumed.folder, whole.folder)
