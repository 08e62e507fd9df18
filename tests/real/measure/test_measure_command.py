import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from lab.base.errors import UserError
from lab.trace.manifest import read_manifest
from lab.trace.response import read_response
from real.__main__ import main
from real.record.checkpoint import trained_weights
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT
from real.update.optimizer import BETAS, EPSILON
from sim.cli import main as guard_sim
from sim.settings.resolve import settings_of
from sim.world import training
from sim.world.optimizer import BETA_1, BETA_2, EPS

FEW = ["--n-problems", "3", "--responses", "24", "--weights", "64", "--min-novel", "1e-3"]
FEW += ["--quiet"]
RUN = ["--n-problems", "3", "--n-votes", "8", "--n-samples", "4", "--epochs", "10", "--quiet"]


def measured(out, *words, code=0):
    """What `guard-train measure` leaves, or None where it refuses with a code."""
    assert main(["measure", "--out", str(out), *FEW, *words]) == code
    return None if code else read_response(out)


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    out = tmp_path_factory.mktemp("pilot") / "run"
    kept = ["--checkpoint-every", "1", "--checkpoint-keep", "100", "--arm", "ttrl"]
    assert main(["run", "--out", str(out), *RUN, *kept]) == 0
    assert len(list(out.glob("checkpoints/step-*/model.safetensors"))) > 8
    return out


def test_the_numbers_of_the_trainer_that_the_simulator_repeats_are_the_usual_ones():
    usual = TrainConfig()
    assert (usual.clip_low, usual.clip_high) == (training.CLIP_LOW, training.CLIP_HIGH)
    assert usual.weight_decay == training.WEIGHT_DECAY
    assert usual.max_grad_norm == training.MAX_GRAD_NORM
    assert (*BETAS, EPSILON) == (BETA_1, BETA_2, EPS)


def test_a_model_is_tried_before_it_is_measured(tmp_path, monkeypatch, capsys):
    tried = Mock(side_effect=UserError("sampled tokens differ"))
    monkeypatch.setattr("real.measure.measuring.check_sampling", tried)
    measured(tmp_path / "response.npz", code=2)
    assert "sampled tokens differ" in capsys.readouterr().err


@pytest.mark.slow
def test_the_tiny_task_is_measured_with_its_growth(pilot, tmp_path, capsys, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "real.measure.measuring.trained_weights",
        lambda path: loaded.append(path) or trained_weights(path),
    )
    last = max((pilot / "checkpoints").iterdir())
    torn = last.with_name(f"{last.name}.tmp")  # as a kill leaves it
    torn.mkdir()
    shutil.copy(last / "checkpoint.json", torn)
    response = measured(tmp_path / "response.npz", "--growth", str(pilot))
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 2 and not shown.err
    edges, leaves = len(response.log_p0), len(response.leaf_answer)
    assert f"3 problems, {edges} edges, {leaves} leaves, mass left out 0." in shown.out
    assert response.facts.growth > 0 and response.features.shape == (edges, 64)
    assert len(loaded) == len(set(loaded)) == 8
    assert np.isfinite(response.log_p0).all() and response.facts.settings["responses"] == 24


@pytest.mark.parametrize(
    "words",
    [["--unit", "answer"], ["--lora-rank", "2"], ["--tiny-verifies", "--dtype", "bfloat16"]],
)
def test_answers_adapters_and_the_verifying_model_are_measured(tmp_path, words):
    out = tmp_path / "response.npz"
    response = measured(out, *words)
    assert response.n_problems == 3 and response.features.any()
    if words[0] == "--unit":
        assert response.facts.unit == "answer" and (response.edge_node == 0).all()
    if words[0] == "--lora-rank":
        assert response.facts.n_weights < 20_000
        asked = settings_of({"policy": "measured", "response": str(out)})
        assert (asked.n_votes, asked.lr) == (64, 3e-4)


def test_what_cannot_be_measured_is_one_line(tmp_path, capsys):
    out = tmp_path / "response.npz"
    measured(out, "--growth", "nowhere", code=2)
    said = capsys.readouterr().err
    assert "nowhere" in said and said.count("\n") == 1 and not out.exists()
    measured(out, "--stop", "=", code=2)
    assert "stop: a measurement cannot" in capsys.readouterr().err and not out.exists()
    out.write_text("mine")
    measured(out, code=2)
    assert "exists" in capsys.readouterr().err and out.read_text() == "mine"


def test_the_run_that_is_predicted_has_the_precision_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("real.measure.measuring.pick_device", lambda _: torch.device("cuda"))
    (tmp_path / "set.json").write_text(json.dumps([{"prompt": "1+2=", "answer": "3"}]))
    words = ["--model", str(CHECKPOINT), "--problems", str(tmp_path / "set.json"), *FEW[2:]]
    words += ["--max-response-tokens", "22", "--prompt-suffix", "", "--threads", "1"]
    assert main(["measure", "--out", str(tmp_path / "response.npz"), *words]) == 0
    assert read_response(tmp_path / "response.npz").facts.run["dtype"] == "bfloat16"


def test_a_measurement_has_the_problems_of_a_run_that_holds_some_out(tmp_path):
    """Else no simulation would predict the run: it is refused as one of other problems."""
    held_out = ["--n-held-out", "2"]
    facts = measured(tmp_path / "response.npz", *held_out).facts
    assert main(["run", "--out", str(tmp_path / "run"), *RUN, *held_out]) == 0
    sources = read_manifest(tmp_path / "run").extra["sources"]
    assert sources == {"model": facts.model, "problems": facts.problems}
    assert len(facts.problem_ids) == 3


def test_torch_uses_the_threads_of_the_settings(tmp_path, monkeypatch, capsys):
    """More of them than free cores wait for each other most of the time."""

    def stopped(*_, **__):
        raise UserError(f"{torch.get_num_threads()} threads")

    monkeypatch.setattr("real.measure.measuring.measure", stopped)
    rows = [{"prompt": "1+2="}, {"prompt": "1+1+1+1="}]
    (tmp_path / "set.json").write_text(json.dumps(rows))
    words = ["--model", "tiny", "--problems", str(tmp_path / "set.json"), "--prompt-suffix", ""]
    words += ["--out", str(tmp_path / "r.npz"), "--threads", "2", "--max-prompt-tokens", "6"]
    assert main(["measure", "--quiet", *words]) == 2
    said = capsys.readouterr().err
    assert "2 threads" in said and "notice: left out: 1 overlong prompts" in said
    assert "notice: 1 of 1 problems have no reference answer, and count as never right" in said


def test_a_run_of_another_model_gives_no_growth(pilot, tmp_path, capsys):
    changed = pilot / "run.json"
    text = changed.read_text()
    changed.write_text(text.replace('"model": {', '"model": {"other": "0", ', 1))
    try:
        measured(tmp_path / "response.npz", "--growth", str(pilot), code=2)
        assert "started from another model" in capsys.readouterr().err
    finally:
        changed.write_text(text)


def test_a_run_of_other_adapters_gives_no_growth(tmp_path, capsys):
    pytest.importorskip("peft")
    kept = ["--checkpoint-every", "1", "--checkpoint-keep", "99", "--lora-rank", "2"]
    assert main(["run", "--out", str(tmp_path / "run"), *RUN, *kept]) == 0
    for other in (["--lora-rank", "2", "--seed", "2"], ["--lora-rank", "0"]):
        words = ["--growth", str(tmp_path / "run"), *other]
        measured(tmp_path / "response.npz", *words, code=2)
        assert "started from another model or other adapters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_forecast_simulates_every_arm_with_the_settings_of_the_run(tmp_path, capfd):
    out = tmp_path / "forecast"
    run = ["--n-votes", "8", "--n-samples", "4", "--epochs", "2", "--batch-size", "3"]
    words = [*FEW, *run, "--arms", "ttrl", "recommended", "--lrs", "1e-4", "--replicates", "2"]
    words += ["--dtype", "bfloat16"]
    assert main(["forecast", "--out", str(out), *words]) == 0
    shown = capfd.readouterr().out
    assert "Differences at equal lr 0.0001, policy measured" in shown
    assert "learning rate 0.0001" in shown and "ttrl: measured policy: mass on unseen" in shown
    runs = {arm: read_manifest(out / "lr-0.0001" / arm) for arm in ("ttrl", "recommended")}
    asked = {"policy": "measured", "lr": 1e-4, "epochs": 2, "n_votes": 8, "batch_size": 3}
    asked["dtype"] = "bfloat16"
    for run in runs.values():
        assert asked.items() <= run.config.items() and run.n_problems == 3
    assert [run.config["kl_coef"] for run in runs.values()] == [0.0, 0.05]
    assert main(["forecast", "--out", str(out), *words]) == 0
    assert "response file" not in capfd.readouterr().out
    fewer = ["16" if word == "24" else word for word in words]
    for other in ([*words, "--top-p", "0.9"], [*words, "--unit", "answer"], fewer):
        assert main(["forecast", "--out", str(out), *other]) == 2
        assert "was measured with other settings" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "ttrl", "gard"], "arm 'gard': unknown; perhaps you meant guard"),
        (["--arms", "ttrl", "ttrl"], "arms: ttrl is there twice"),
        (["--arms", "ttrl", "matched"], "arms: matched needs ttrl and guard; add them"),
        (["--lrs", "0"], "lr = 0"),
        (["--lr", "3e-5"], "--lr and --lrs: both set the learning rate; give --lrs alone"),
        (["--loss", "grpo"], "the run to predict has loss = grpo, which the measured policy does"),
        (
            ["--arms", "ttrl", "one_shot_em"],
            "rule = one_shot_em: policy = measured needs a rule with rewards",
        ),
        (["--guard.W", "3"], "guard: every arm and seed has its own in a comparison"),
        (["--step-factor", "2"], "step_factor: every arm and seed has its own"),
        (["--replicates", "0"], "replicates = 0"),
    ],
)
def test_a_forecast_refuses_mistakes_before_it_measures(words, message, tmp_path, capsys):
    assert main(["forecast", "--out", str(tmp_path / "forecast"), *FEW, *words]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "forecast").exists()


def test_a_forecast_goes_on_with_the_problems_and_arms_of_the_run(tmp_path, monkeypatch, capsys):
    asked = Mock(return_value=Mock(returncode=0))
    monkeypatch.setattr("real.commands.subprocess.run", asked)
    (tmp_path / "set.json").write_text(json.dumps([{"prompt": "1+2=", "answer": "3"}]))
    words = ["--preset", "llama-3.2-3b/amc", "--model", str(CHECKPOINT), "--arms", "guard_release"]
    words += ["--problems", str(tmp_path / "set.json"), "--chat-template", "auto", "--lrs", "1e-4"]
    words += ["--max-response-tokens", "22", "--prompt-suffix", "", "--responses", "8", "--quiet"]
    words += ["--weights", "64", "--threads", "1", "--out", str(tmp_path / "out")]
    assert main(["forecast", *words]) == 2
    assert "run to predict has eval_top_p = 0.95, which the measured" in capsys.readouterr().err
    words += ["--eval-top-p", "1"]
    for _ in range(2):
        assert main(["forecast", *words]) == 0
    assert asked.call_count == 2 and asked.call_args.args[0][-1] == "guard_release,frs=False"
    (tmp_path / "set.json").write_text(json.dumps([{"prompt": "1+2=", "answer": "4"}]))
    assert main(["forecast", *words]) == 2
    assert "model or problems have changed since" in capsys.readouterr().err


def test_a_simulation_refuses_what_the_measured_run_has_and_the_policy_lacks(tmp_path, capsys):
    out = tmp_path / "response.npz"
    measured(out, "--loss", "grpo")
    asked = ["run", "--policy", "measured", "--response", str(out), "--out", str(tmp_path / "run")]
    file = tmp_path / "settings.toml"
    file.write_text(f'policy = "measured"\nresponse = "{out}"\n')
    for words in (asked, ["run", "--config", str(file), "--out", str(tmp_path / "run")]):
        assert guard_sim(words) == 2
        assert "has loss = grpo, which the measured policy does not have" in capsys.readouterr().err
