"""`guard-sim` as a user meets it."""

import pytest

from lab import load
from sim.cli import main
from sim.engine import Simulation

FEW = ["--n-problems", "20", "--epochs", "8", "--quiet"]


def test_run_prints_fates_and_leaves_a_folder(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--seed", "3", "--replicates", "2", *FEW]) == 0
    shown = capsys.readouterr().out
    assert "Degraded" in shown and str(out) in shown and "guard" in shown
    trace = load(out)
    assert trace.run.config["seed"] == 3 and trace.replicates == [0, 1]


def test_too_short_a_run_has_scores_but_no_fates(tmp_path, capsys):
    assert main(["run", "--out", str(tmp_path / "a"), "--n-problems", "9", "--epochs", "2"]) == 0
    assert "nan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "arm", "guard"),
    [
        (["--profile", "off"], "ttrl", {"frs": False}),
        (["--profile", "release"], "release", {"skip_by": "mask"}),
        (["--arm", "memory"], "memory", {"label_from": "memory"}),
        (["--arm", "truth"], "truth", {"rcsu": False}),
        (["--profile", "mps", "--guard.W", "3"], "custom", {"W": 3, "mps": True, "frs": False}),
        (["--arm", "matched", "--step-factor", "0.9"], "matched", {"frs": False}),
    ],
)
def test_profiles_and_arms(tmp_path, options, arm, guard):
    assert main(["run", "--out", str(tmp_path / "run"), *FEW, *options]) == 0
    run = load(tmp_path / "run").run
    assert run.arm == arm
    assert {name: run.config["guard"][name] for name in guard} == guard
    assert run.config["labels"] == ("truth" if arm == "truth" else "votes")


def test_settings_file_and_options_that_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('population = "qwen-amc"\nn_problems = 12\nepochs = 3\n[guard]\nW = 4\n')
    out = tmp_path / "run"
    line = ["run", "--config", str(file), "--out", str(out), "--epochs", "2", "--quiet"]
    assert main(line) == 0
    config = load(out).run.config
    assert (config["n_problems"], config["epochs"], config["guard"]["W"]) == (12, 2, 4)
    assert config["population"] == "qwen-amc"


def test_a_named_population_brings_its_size(tmp_path):
    line = ["run", "--population", "llama-aime24", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(line) == 0
    config = load(tmp_path / "run").run.config
    assert (config["n_problems"], config["epochs"]) == (30, 60)


def test_compare_runs_all_arms(tmp_path, capsys):
    line = ["compare", "--out", str(tmp_path / "all"), "--replicates", "2", *FEW]
    assert main([*line, "--arms", "ttrl", "guard", "matched"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("ttrl", "guard", "matched"))
    assert load(tmp_path / "all" / "matched").run.arm == "matched"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "magnet"], "policy"),
        (["--population", "gpt-9"], "population = 'gpt-9': unknown"),
        (["--profile", "strict"], "profile = 'strict': unknown"),
        (["--arm", "magic"], "arm 'magic': unknown"),
        (["--arm", "guard", "--profile", "off"], "give one of them"),
        (["--arm", "matched"], "needs --step-factor"),
        (["--step", "-1"], "step = -1"),
        (["--step", "nan"], "step = nan"),
        (["--step", "1e308"], "not finite"),
        (["--epochs", "many"], "epochs"),
        (["--n-samples", "65"], "n_samples = 65"),
        (["--guard.W", "0"], "W = 0"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--no-such-option"], "no-such-option"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, options, message):
    assert main(["run", "--out", str(tmp_path / "run"), "--quiet", *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in lines[0]


@pytest.mark.parametrize("text", ["steps = 3", "epochs = 'x'", "epochs = 0", "[guard]\nW = 0", "="])
def test_bad_settings_files_are_named(tmp_path, capsys, text):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    assert main(["run", "--out", str(tmp_path / "run"), "--config", str(file)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "bad.toml" in lines[0]
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    for command in ("run", "compare"):
        assert main([command, "--out", str(tmp_path), *FEW]) == 2
        assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_ctrl_c_ends_with_130_and_a_readable_folder(tmp_path, monkeypatch, capsys):
    def epoch(self, number):
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "epoch", epoch)
    assert main(["run", "--out", str(tmp_path / "run"), *FEW]) == 130
    assert load(tmp_path / "run").run.status == "interrupted"
    assert "Traceback" not in capsys.readouterr().err
