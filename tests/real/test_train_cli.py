import re
import subprocess
import sys
from dataclasses import replace

import pytest

from lab.trace.trace import RunFolder, load
from real.__main__ import main
from real.settings.config import TrainConfig
from real.settings.groups import BOX_REQUEST
from real.settings.stored import manifest_of

QUICK = ["--n-problems", "4", "--n-votes", "8", "--n-samples", "4", "--epochs", "1", "--quiet"]


def run(*words):
    return main([str(word) for word in words])


def test_run_writes_a_folder_says_where_and_shows_its_phases(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out = tmp_path / "run"
    assert run("run", "--out", out, "--arm", "frozen", *QUICK[:-1]) == 0
    said = capsys.readouterr()
    assert "Frozen labels: pass@1 0." in said.out and str(out) in said.out
    assert "responses without a readable answer: 0.0% -> " in said.out
    (notice,) = re.findall("guard-train: notice: (.*)", said.err)
    assert "epochs = 1: too few for the fates" in notice and "which need 8" in notice
    trace = load(out)
    assert trace.run.arm == "frozen" and trace.run.status == "finished"
    assert trace.run.config["guard"]["labels"]["label_from"] == "frozen"
    drawn = said.err.split("\r")
    for phase in ("votes before training", "evaluation", "checkpoint"):
        assert any(line.rstrip().endswith(f", {phase}]") for line in drawn)
    assert "1/1 [" in drawn[-1] and "reward 0." in drawn[-1]


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("run", ["--n-samples", "65"], "n_samples = 65: must be at most n_votes = 64"),
        ("run", ["--threads", "1000000000"], "threads = 1000000000: must lie in [1, 1024]"),
        ("run", ["--preset", "best"], "preset = 'best': unknown; one of llama"),
        ("run", ["--model", "nowhere"], "model nowhere: no such folder"),
        ("run", ["--problems", "nowhere.json"], "needs a model"),
        ("compare", ["--jobs", "0"], "jobs = 0: must be at least 1"),
        ("compare", ["--seed", "3"], "seed: every arm and seed has its own"),
        ("compare", ["--guard.W", "3"], "guard: every arm and seed has its own"),
    ],
)
def test_bad_options_are_one_line(command, words, message, tmp_path, capsys):
    assert run(command, "--out", tmp_path / "run", *words) == 2
    check_refused(capsys, message)
    assert not (tmp_path / "run").exists()


def test_comparison_refuses_a_folder_that_it_would_write_into(tmp_path, capsys):
    (tmp_path / "ttrl" / "seed-1").mkdir(parents=True)
    (tmp_path / "ttrl" / "seed-1" / "mine.txt").write_text("mine")
    assert run("compare", "--out", tmp_path, "--arms", "ttrl", "--seeds", "0", "1") == 2
    check_refused(capsys, "seed-1: exists and holds no run")
    assert (tmp_path / "ttrl" / "seed-1" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("command", ["run", "make-tiny"])
def test_missing_torch_says_what_to_install(command, tmp_path):
    """transformers, which is there, may say so as well."""
    code = "import sys; sys.modules['torch'] = None; import real.__main__ as m; sys.exit(m.main())"
    words = [sys.executable, "-c", code, command, "--out", str(tmp_path / "run")]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2 and not (tmp_path / "run").exists()
    message = r"guard-train: torch not installed; install with pip install -e '.*\[real\]'"
    assert re.fullmatch(message, ended.stderr.splitlines()[-1])


def check_refused(capsys, message):
    said = capsys.readouterr()
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert said.err.startswith("guard-train: ") and message in said.err
    assert "Traceback" not in said.err and not said.out


FILE = {"model": "m", "problems": "p.json"}
VLLM = {**FILE, "engine": "vllm", "dtype": "bfloat16", "lora_rank": 4}
"""In bfloat16 its samples are corrected for, and a merge of adapters would round."""


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, {"lr": 3e-4, "n_problems": 64, "threads": 1, "answer_check": "strings"}),
        ({}, {"max_response_tokens": 22, "prompt_suffix": ""}),
        (FILE, {"lr": 5e-7, "n_problems": None, "threads": None, "answer_check": "math"}),
        (FILE, {"prompt_suffix": BOX_REQUEST}),
        ({"lr": 1e-4, "answer_check": "math"}, {"lr": 1e-4, "answer_check": "math"}),
        (VLLM, {"tis_cap": 2.0, "engine_adapters": True}),
        ({**VLLM, "engine": "vllm_server"}, {"tis_cap": 2.0, "engine_adapters": False}),
        ({**VLLM, "engine": "transformers"}, {"tis_cap": 0.0, "engine_adapters": False}),
        ({**VLLM, "dtype": "float32"}, {"tis_cap": 0.0, "engine_adapters": False}),
        ({**VLLM, "tis_cap": 0.0}, {"tis_cap": 0.0}),
        ({**VLLM, "rule": "one_shot_em"}, {"tis_cap": 0.0}),
        ({**VLLM, "engine_adapters": False}, {"engine_adapters": False}),
        ({**VLLM, "lora_rank": 0}, {"engine_adapters": False}),
    ],
    ids=str,
)
def test_settings_that_are_left_out_are_settled_by_task_and_engine(given, chosen):
    settled = TrainConfig(**given).settled()
    assert {name: getattr(settled, name) for name in chosen} == chosen
    assert settled.settled() == settled


def test_a_run_to_replay_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(treatment="other")
    assert config.treatment == str(tmp_path.resolve() / "other")
    assert [TrainConfig(treatment=t).treatment for t in ("own", "permuted")] == ["own", "permuted"]


def test_a_folder_with_an_unfinished_run_names_the_way_to_go_on(tmp_path, capsys):
    config = TrainConfig(n_problems=8, n_votes=8, n_samples=4, batch_size=4, epochs=4).settled()
    for name, changes, advice in (
        ("run", {}, "stopped at step 0, go on with guard-train resume"),
        ("lost", {"checkpoint_every": 0}, "choose another folder or delete it"),
    ):
        manifest = manifest_of(replace(config, **changes), 8, "tiny", "transformers on cpu")
        with pytest.raises(KeyboardInterrupt), RunFolder.create(tmp_path / name, manifest):
            raise KeyboardInterrupt
        assert run("run", "--out", tmp_path / name, *QUICK) == 2
        check_refused(capsys, f"already holds a run; {advice}")


@pytest.mark.parametrize("kept", [False, True])
def test_a_stopped_run_names_the_way_to_go_on_if_there_is_one(kept, tmp_path, capsys, monkeypatch):
    def stopped(_, out, **__):
        (out / "checkpoints" if kept else out).mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("real.trainer.train", stopped)
    assert run("run", "--out", tmp_path / "run", *QUICK) == 130
    assert ("to go on: guard-train resume" in capsys.readouterr().err) == kept
