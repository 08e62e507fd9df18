import itertools
import re

import pandas as pd
import pytest

from lab import load
from lab.__main__ import main as report
from lab.base.settings import from_values
from lab.compare.collection import read_sweep
from sim import SimConfig
from sim.cli import main

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
    shown = capsys.readouterr().out
    assert shown.startswith("epochs = 2: fates need at least 8; the run has scores alone\n")
    assert "nan" not in shown and "MargDeg" not in shown and "pass@1" in shown


def test_progress_counts_the_epochs_without_the_vote_before_training(tmp_path, capsys):
    assert main(["run", "--out", str(tmp_path / "a"), "--n-problems", "9", "--epochs", "2"]) == 0
    told = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == [" 50% TTRL-Guard  epoch 1/2", "100% TTRL-Guard  epoch 2/2"]


def test_an_interrupted_comparison_goes_on_with_the_same_command(tmp_path, capsys):
    line = ["compare", "--out", str(tmp_path / "all"), "--replicates", "2", *FEW, "--arms"]
    assert main([*line, "ttrl", "guard"]) == 0
    whole = capsys.readouterr().out
    assert max(map(len, whole.splitlines()[:-1])) <= 100 and "factor: factor on" in whole
    run = tmp_path / "all" / "guard" / "run.json"
    before = load(run.parent).visits
    run.write_text(run.read_text().replace('"status": "finished"', '"status": "interrupted"'))
    kept = (tmp_path / "all" / "ttrl" / "run.json").stat().st_mtime_ns
    assert main([*line, "ttrl", "guard"]) == 0
    assert capsys.readouterr().out == whole
    assert load(run.parent).visits.equals(before) and load(run.parent).run.status == "finished"
    assert (tmp_path / "all" / "ttrl" / "run.json").stat().st_mtime_ns == kept
    assert main([*line, "ttrl", "guard", "--guard.W", "3", "--step", "0.05"]) == 2
    assert "differ from those it was run with: step = 0.05 (was 0.06);" in capsys.readouterr().err


def test_a_named_population_brings_its_size_as_in_python(tmp_path):
    own, file = SimConfig(population="llama-aime24"), tmp_path / "run.toml"
    file.write_text('population = "llama-aime24"\n')
    for place, options in enumerate((["--population", "llama-aime24"], ["--config", str(file)])):
        folder = tmp_path / f"run-{place}"
        assert main(["run", *options, "--out", str(folder), "--quiet"]) == 0
        assert from_values(load(folder).run.config, SimConfig, "") == own
    assert (own.n_problems, own.epochs) == (30, 60)


def test_a_settings_file_keeps_the_replicates_of_a_study(tmp_path):
    (tmp_path / "some.toml").write_text("n_problems = 20\nepochs = 8\n")
    line = ["compare", "--config", str(tmp_path / "some.toml"), "--arms", "ttrl", "--quiet"]
    assert main([*line, "--out", str(tmp_path / "all")]) == 0
    assert load(tmp_path / "all" / "ttrl").replicates == list(range(20))


def test_the_paper_s_cells_have_their_own_arms_and_sizes(tmp_path, capsys):
    line = ["compare", "--preset", "paper", "--out", str(tmp_path / "paper"), "--quiet"]
    assert main([*line, "--own-best"]) == 2
    assert "--own-best: --preset has its own" in capsys.readouterr().err
    for option, value in (("--rule", "srt"), ("--population", "llama-amc"), ("--n-problems", "9")):
        assert main([*line, option, value]) == 2
        assert f"{option}: --preset has its own" in capsys.readouterr().err
    assert not (tmp_path / "paper").exists()


def test_an_existing_folder_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    named = "is not empty, it holds mine.txt"
    words = {"run": "is not empty", "compare": named, "sweep --vary step=1": named}
    for command, said in words.items():
        assert main([*command.split(), "--out", str(tmp_path), *FEW]) == 2
        assert f"{tmp_path}: {said}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_single_replicate_has_neither_an_interval_nor_another_half(tmp_path, capsys):
    line = ["compare", "--out", str(tmp_path / "one"), "--replicates", "1", *FEW]
    assert main([*line, "--arms", "ttrl", "guard", "--steps", "0.2"]) == 0
    shown = capsys.readouterr().out
    assert "own best step, chosen by its only replicate" in shown
    assert "other half" not in shown and "nan" not in shown


def test_what_a_stopped_comparison_left_of_other_arms_is_in_nobodys_way(tmp_path, capsys):
    line = ["compare", "--out", str(tmp_path), "--replicates", "1", *FEW, "--arms", "ttrl"]
    assert main([*line, "guard", "replayed"]) == 2
    assert "replayed needs two replicates, since each" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # refused before any run
    for name in (".matched/0", "matched", "memory/visits"):
        (tmp_path / name).mkdir(parents=True)
    assert main(line) == 0
    assert load(tmp_path / "ttrl").run.status == "finished"


def test_compare_writes_every_difference_over_steps_and_the_null_model(tmp_path, capsys):
    out = tmp_path / "all"
    line = ["compare", "--out", str(out), "--replicates", "3", *FEW, "--null"]
    line += ["--arms", "ttrl", "guard", "random_skip", "--steps", "0.2", "--guard.W", "3"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "Differences at equal step 0.06, policy attractor\n" in shown
    arms, policies = ("ttrl", "guard", "random_skip"), ("attractor", "independent")
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["arm", *arms]
    # Two steps: every best lies at one end or the other.
    assert "of the grid" in shown
    for policy in policies:
        head = "Every arm at its own best step, chosen on the other half of the replicates"
        assert f"{head}, policy {policy}\n" in shown
    assert "* where it excludes 0" in shown and f"all steps: {out}/grid/results.csv" in shown
    table = pd.read_parquet(out / "comparison.parquet")
    places = table[["at", "policy", "step"]].drop_duplicates().fillna(-1)
    at_best = [("own best step", policy, -1) for policy in policies]
    equal = [("equal step", *place) for place in itertools.product(policies, (0.06, 0.2))]
    assert sorted(places.itertuples(index=False, name=None)) == [*equal, *at_best]
    # And the guard against the best rival, where the update's share of TTRL's has no meaning.
    n_metrics = table["metric"].nunique()
    # Ten pairs of three arms and two votes that need no training.
    assert len(table) == 6 * 10 * n_metrics + 2 * (n_metrics - 1)
    assert load(out / "random_skip").run.title == "TTRL at random skips"
    assert load(out / "guard").run.config["guard"]["rates"]["W"] == 3
    grid = pd.read_csv(out / "grid" / "results.csv")
    evals = load(out / "guard").evals
    own = grid[(grid["policy"] == "attractor") & (grid["step"] == 0.06) & (grid["arm"] == "guard")]
    last = evals[evals["step"] == evals["step"].max()]
    assert own["pass_final"].tolist() == (100 * last["pass_at_1"]).tolist()


def test_a_varied_setting_may_have_no_value(tmp_path, capsys):
    out = tmp_path / "s"
    vary = ["--vary", "max_grad_norm=none,0.5", "--replicates", "2"]
    assert main(["sweep", "--out", str(out), *vary, *FEW]) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"^none +guard ", shown, re.M)) == 2
    assert list(read_sweep(out)["max_grad_norm"].unique()) == ["none", 0.5]
    assert report([str(out), "--output", str(tmp_path / "report.html")]) == 0


def test_sweep_prints_a_line_per_run(tmp_path, capsys):
    line = ["sweep", "--out", str(tmp_path / "s"), "--vary", "guard.W=3,5", "step=.1,1e308", *FEW]
    line += ["--arms", "ttrl", "guard", "--replicates", "2"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "failed in 2 cell(s), arms ttrl, guard: step = 1e+308" in shown
    ttrl = [row for row in shown.splitlines() if " ttrl " in row and row.startswith("any")]
    assert len(ttrl) == 4


def test_a_sweep_without_a_run_is_no_success(tmp_path, capsys):
    vary = ["--vary", "n_votes=16,24", "--replicates", "1"]
    assert main(["sweep", "--out", str(tmp_path / "s"), *vary, *FEW]) == 1
    assert "n_samples = 32: must be at most n_votes = 16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "step=1", "step=2"], "there twice"),
        (["--preset", "all"], "preset"),
        (["--preset", "W", "--vary", "step=1"], "has its own axes"),
        (["--vary", "step=1", "--workers", "0"], "workers = 0"),
        (["--vary", "step=1", "--profile", "strict"], "profile = 'strict': unknown"),
    ],
)
def test_bad_sweeps_are_one_line_and_exit_code_2(tmp_path, capsys, options, message):
    assert main(["sweep", "--out", str(tmp_path / "s"), "--quiet", *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "s").exists()
