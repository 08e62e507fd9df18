import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

import lab
import real
import sim
from guard_core.rules import RULES
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.base.own_rules import load_rules
from lab.base.settings import to_values
from real.__main__ import main as train_main
from real.settings.config import TrainConfig
from sim.cli import main

RULE = """
from dataclasses import dataclass
from typing import ClassVar

from guard_core.rules import Rule, per_response


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares(Rule):
    name: ClassVar[str] = "NAME"
    title: ClassVar[str] = "Shares"
    power: float = 2.0

    def pay(self, obs, label):
        return per_response(obs.shares**self.power, obs.trained)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A rule called `shares`, forgotten after the test."""
    monkeypatch.setattr("lab.base.own_rules._LOADED", set())
    before = dict(RULES)
    path = tmp_path / "rules #1" / "mine.py"
    path.parent.mkdir()
    path.write_text(RULE.replace("NAME", "shares"))
    yield path
    RULES.clear()
    RULES.update(before)


FEW = ["--n-problems", "8", "--epochs", "3", "--replicates", "2", "--quiet"]


def test_a_rule_of_a_file_is_an_arm_of_commands_and_their_workers(file, tmp_path, capsys):
    line = ["compare", "--out", str(tmp_path / "all"), "--arms", "ttrl", "shares", *FEW]
    assert main(line) == 2
    assert "arm 'shares': unknown" in capsys.readouterr().err
    line += ["--rules", str(file), "--workers", "2"]
    assert main(line) == 0
    assert "\nshares " in capsys.readouterr().out.partition("Differences")[2]
    run = lab.load(tmp_path / "all" / "shares").run
    assert run.title == "Shares" and run.config["rule"] == "shares"
    assert run.config["rules"] == list(load_rules(file)) and arm("shares+guard").rule == "shares"
    assert main(line) == 0  # goes on, as the file is the same
    file.write_text(file.read_text() + "\n# other\n")
    with pytest.raises(UserError, match="has changed since the run was started"):
        load_rules(run.config["rules"])


def test_a_training_process_reads_the_rule_from_its_settings(file):
    config = TrainConfig(rules=(str(file),), rule="shares", rule_options={"power": 3.0})
    settings = json.dumps(to_values(replace(config, seed=1)))
    code = (
        "import json, sys\nfrom lab.base.settings import from_values\n"
        "from real.settings.config import TrainConfig, rule_of\n"
        "print(rule_of(from_values(json.loads(sys.argv[1]), TrainConfig, '')))"
    )
    done = subprocess.run([sys.executable, "-c", code, settings], capture_output=True, text=True)
    assert done.stdout == "Shares(power=3.0)\n", done.stderr


TAKEN = ["scope", "guard", "memory_guard", "frozen", "matched_x", "vote", "a+guard", "a: b", ""]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "holds no subclass"),
        ("import no_such_module", "cannot be imported .ModuleNotFoundError: No module"),
        ("def f(:", "cannot be imported .SyntaxError"),
        *(
            (RULE.replace("NAME", n), f"Shares needs a name of its own, not {re.escape(n)}")
            for n in TAKEN
        ),
        (RULE.replace("NAME", "one") + "class Two(Shares): ...", "Two needs a name .* not one,"),
    ],
)
def test_a_file_that_is_no_rule_is_refused_in_one_line(file, text, said):
    before = dict(RULES)
    file.write_text(text)
    with pytest.raises(UserError, match=said) as seen:
        load_rules([file])
    assert "\n" not in str(seen.value) and before == RULES
    with pytest.raises(UserError, match="cannot be read"):
        load_rules(file.with_name("none.py"))


def test_a_rule_without_a_title_is_shown_by_its_name(file):
    titled = '    title: ClassVar[str] = "Shares"\n'
    file.write_text(RULE.replace("NAME", "untitled").replace(titled, ""))
    load_rules(file)
    assert arm("untitled").title == "untitled"
    assert arm("untitled+memory").title == "untitled + Vote memory"


def test_public_functions_are_listed_and_one_folder_is_one_path(tmp_path, make_trace, save):
    for package in (lab, sim, real):
        assert set(package.__all__) <= set(dir(package))
        assert all(hasattr(package, name) for name in package.__all__)
    assert {"compare", "simulate", "run_sweep"} <= set(dir(sim)) and "collect" in dir(lab)
    save(make_trace("ttrl", [[[0.5, 0.5]]], [[0.5, 0.5]]), tmp_path / "tiny" / "ttrl")
    assert lab.collect(str(tmp_path / "tiny")).comparisons[0].arms == ["ttrl"]


@pytest.mark.slow
def test_training_with_a_rule_of_a_file_is_resumed(file, tmp_path, monkeypatch):
    size = {"n_problems": 4, "n_votes": 4, "n_samples": 4, "epochs": 2, "eval_every": 0}
    config = TrainConfig(rules=(str(file),), rule="shares", checkpoint_every=1, **size)

    def stop(done: float) -> None:
        if done >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        real.train(config, tmp_path / "run", stop)
    RULES.pop("shares")  # as in a new process
    monkeypatch.setattr("lab.base.own_rules._LOADED", set())
    assert train_main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    run = lab.load(tmp_path / "run").run
    assert run.extra["resumed"] and run.config["rule"] == "shares" and "shares" in RULES
