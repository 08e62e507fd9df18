"""Rules from the command line, in comparisons, and in sweeps."""

import json

import pandas as pd
import pytest

from lab import load
from lab.__main__ import main as report
from lab.arm_settings import with_arm
from lab.base.arms import arm, with_rule
from lab.study import control
from sim import SimConfig
from sim.cli import main
from sim.studies.jobs import job_of
from sim.studies.sweep import RULE_ARMS, Sweep, preset, preset_settings

FEW = ["--n-problems", "12", "--epochs", "8", "--replicates", "2", "--quiet"]


def test_the_rules_own_settings(tmp_path):
    options = ["--rule", "srt", "--rule-options", "threshold", "0.5", "keep", "0.5"]
    assert main(["run", "--out", str(tmp_path / "a"), *options, *FEW]) == 0
    assert load(tmp_path / "a").run.config["rule_options"] == {"threshold": 0.5, "keep": 0.5}
    settings = tmp_path / "s.toml"
    settings.write_text('rule = "coverrl"\n[rule_options]\nverifications = 2\n[guard]\nW = 3\n')
    assert main(["run", "--out", str(tmp_path / "b"), "--config", str(settings), *FEW]) == 0
    assert load(tmp_path / "b").run.config["rule_options"] == {"verifications": 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rule", "nope"], "unknown, use one of ttrl"),
        (["--rule", "srt", "--rule-options", "keeps", "1"], "no setting 'keeps'"),
        (["--rule", "srt", "--rule-options", "keep", "2"], "srt.keep = 2"),
        (["--rule", "intuitor", "--profile", "paper"], "has no label that a guard"),
        (["--rule", "empo", "--profile", "off", "--guard.label-from", "memory"], "has no label"),
        (["--rule", "intuitor", "--arm", "guard"], "has no label that a guard"),
        (["--rule", "scope", "--arm", "frozen"], "makes new labels on every visit"),
        (["--rule", "srt", "--arm", "ttrl"], "trains by rule ttrl"),
        (["--rule", "srt", "--arm", "scope"], "trains by rule scope"),
        (["--rule", "srt", "--update", "expected"], "only rule = ttrl has it"),
        (["--arm", "scope", "--labels", "truth"], "take labels = votes"),
        (["--arm", "rent", "--signal", "1"], "signal = 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, options, words):
    assert main(["run", "--out", str(tmp_path / "a"), *options, *FEW]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and words in said[0]
    assert not (tmp_path / "a").exists()


def test_under_a_rule_guards_and_their_controls_are_its_own():
    names = ("guard", "memory", "matched", "random_skip_release", "ttrl", "truth", "rent")
    shown = [with_rule(name, "srt") for name in names]
    assert shown[:3] == ["srt+guard", "srt+memory", "matched_srt+guard"]
    assert shown[3:] == ["random_skip_srt+release", "ttrl", "truth", "rent"]
    assert [with_rule(name, "ttrl") for name in names] == list(names)
    own = control("matched_srt+guard")
    assert own is not None and (own.unguarded, own.target) == ("srt", "srt+guard")
    assert own.arm.rule == "srt" and "SRT" in own.arm.title


def test_settings_of_a_rule_belong_to_its_arms_alone():
    base = SimConfig(rule="srt", rule_options={"keep": 0.5})
    assert with_arm(base, arm("srt+memory")).rule_options == {"keep": 0.5}
    assert with_arm(base, arm("scope")).rule_options == {}
    assert with_arm(base, arm("ttrl")).rule == "ttrl"


def test_many_rules_side_by_side_and_in_the_report(tmp_path, capsys):
    arms = ["ttrl", "srt", "srt+guard", "matched_srt+guard", "scope", "intuitor", "maj_at_n"]
    out, page = tmp_path / "c", tmp_path / "report.html"
    assert main(["compare", "--out", str(out), "--arms", *arms, *FEW]) == 0
    assert {p.name for p in out.iterdir() if p.is_dir()} == set(arms)
    table = pd.read_parquet(out / "comparison.parquet")
    assert {"scope", "matched_srt+guard"} <= set(table["arm"]) | set(table["against"])
    facts = json.loads((out / "matched_srt+guard" / "run.json").read_text())
    assert facts["extra"]["achieved_ratio"] == pytest.approx(1, abs=0.02)
    capsys.readouterr()
    folders = [str(out / name) for name in arms]
    assert report([*folders, "-o", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    for title in ("SCOPE", "SRT + TTRL-Guard", "maj@n, no training", "Intuitor"):
        assert title in html


def test_compare_with_a_rule_takes_its_guard(tmp_path):
    options = ["--rule", "t3rl", "--arms", "t3rl", "guard"]
    assert main(["compare", "--out", str(tmp_path / "c"), *options, *FEW]) == 0
    assert (tmp_path / "c" / "t3rl+guard").is_dir()
    guards = [load(tmp_path / "c" / name).run.config["guard"] for name in ("t3rl", "t3rl+guard")]
    assert [guard["frs"] for guard in guards] == [False, True]


def test_a_sweep_shares_runs_that_the_signal_cannot_reach():
    groups = ({"signal": (0.0, 0.3), "step": (0.1,)},)
    sweep = Sweep(base=SimConfig(n_problems=9, epochs=2), arms=("ttrl",), groups=groups)
    keys = {
        name: {job_of(sweep.base, values, name).key for _, values in sweep.cells()}
        for name in ("ttrl", "srt", "co_rewarding_2", "t3rl", "scope", "coverrl+guard")
    }
    assert {name: len(found) for name, found in keys.items()} == {
        "ttrl": 1, "srt": 1, "co_rewarding_2": 1, "t3rl": 2, "scope": 2, "coverrl+guard": 2,
    }  # fmt: skip
    assert len(set().union(*keys.values())) == 9


def test_the_preset_names_every_rule_and_its_settings():
    sweep = preset("rules", SimConfig(**preset_settings("rules")))
    assert sweep.arms == RULE_ARMS and {"scope", "one_shot_em", "truth"} <= set(sweep.arms)
    assert sweep.names == ["population", "signal", "step"] and len(sweep.cells()) == 28
    assert sweep.base.replicates >= 16


def test_the_preset_prints_its_tables(tmp_path, capsys):
    out, size = tmp_path / "s", ["--replicates", "4", "--n-problems", "8", "--epochs", "10"]
    arms = ["--arms", "ttrl", "rent", "srt+guard"]
    assert main(["sweep", "--preset", "rules", "--out", str(out), *arms, *size, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| RENT |") == 4 and "| SRT + TTRL-Guard |" in shown
    assert "population qwen-math500, signal 0.3" in shown
