"""Settings that cannot be run are refused in one line, before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from real import TrainConfig
from real.__main__ import main
from real.compare import compare

OFF = GuardConfig.off()
GUARD = GuardConfig.paper()
FROZEN = GuardConfig(frs=False, mps=False, rcsu=False, label_from="frozen")
SMALL = ["--n-problems", "4", "--batch-size", "4", "--n-votes", "8", "--n-samples", "4"]
SMALL += ["--epochs", "1", "--eval-samples", "1", "--quiet"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rule": "nope"}, "rule = 'nope': unknown"),
        ({"rule": "srt", "rule_options": {"treshold": 1}}, "no setting 'treshold'"),
        ({"rule": "rent", "guard": GUARD}, "no label that a guard or memory could work on; take"),
        ({"rule": "empo", "guard": FROZEN}, "no label that a guard or memory could work on"),
        ({"rule": "maj_at_n", "guard": GUARD}, "trains nothing that a guard could hold back"),
        ({"rule": "scope", "guard": FROZEN}, "makes new labels on every visit"),
        ({"rule": "coverrl", "guard": OFF}, "model of the tiny task cannot judge"),
        ({"rule": "rent", "guard": OFF, "labels": "truth"}, "does not use a given label"),
        ({"rule": "scope", "guard": OFF, "labels": "truth"}, "does not use a given label"),
        ({"rule": "one_shot_em", "guard": OFF, "kl_coef": 0.1}, "kl_coef = 0.1: rule one_shot_em"),
        ({"rule": "one_shot_em", "guard": OFF, "drop_uniform": True}, "drop_uniform = True"),
        ({"rule": "one_shot_em", "guard": OFF, "tis_cap": 2.0}, "tis_cap = 2.0"),
    ],
)
def test_settings_that_contradict(settings, expected):
    with pytest.raises(UserError) as error:
        TrainConfig(**settings)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_command_line(tmp_path, capsys):
    def manifest(name: str) -> dict[str, Any]:
        return json.loads((tmp_path / name / "run.json").read_text())

    out = str(tmp_path / "a")
    options = ["--rule-options", "threshold", "0.25", "keep", "0.5"]
    assert main(["run", "--out", out, "--arm", "srt", *options, *SMALL]) == 0
    config = manifest("a")["config"]
    assert config["rule"] == "srt" and config["rule_options"] == {"threshold": 0.25, "keep": 0.5}
    # A rule without a label has no guard, unless one is asked for.
    assert main(["run", "--out", str(tmp_path / "b"), "--rule", "empo", *SMALL]) == 0
    assert manifest("b")["arm"] == "empo" and manifest("b")["title"] == "EMPO"
    capsys.readouterr()
    for words in (
        ["--rule", "empo", "--profile", "paper"],
        ["--arm", "ttrl", "--rule", "nope"],
        ["--arm", "srt", "--rule-options", "size", "3"],
    ):
        assert main(["run", "--out", str(tmp_path / "c"), *words]) == 2
        message = capsys.readouterr().err
        assert message.startswith("guard-train: ") and message.count("\n") == 1, message


def test_settings_file(tmp_path):
    path = tmp_path / "srt.toml"
    path.write_text('rule = "srt"\n[rule_options]\nkeep = 0.5\n[guard]\nfrs = false\nmps = false\n')
    command = ["run", "--out", str(tmp_path / "run"), "--config", str(path), *SMALL]
    assert main(command) == 0
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["rule_options"] == {"keep": 0.5} and config["guard"]["rcsu"]


def test_comparisons(tmp_path):
    small = TrainConfig(
        n_problems=4, batch_size=4, n_votes=8, n_samples=4, epochs=1, eval_samples=1,
        rule="srt", rule_options={"keep": 0.25},
    )  # fmt: skip
    done = compare(small, tmp_path / "out", ("ttrl", "srt", "srt+guard", "empo"), (0,))
    assert not done.failed and [len(found.seeds) for found in done.arms] == [1] * 4
    for name, kept in (("ttrl", {}), ("srt", small.rule_options), ("empo", {})):
        found = json.loads((tmp_path / "out" / name / "seed-0" / "run.json").read_text())
        assert found["config"]["rule_options"] == kept and found["arm"] == name
    for arms in (("ttrl", "empo"), ("srt", "rent+guard"), ("srt", "coverrl")):
        with pytest.raises(UserError):
            compare(small, tmp_path / "not", arms, (0,))
    assert not (tmp_path / "not").exists()
