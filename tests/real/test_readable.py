"""Responses without a readable answer are said before training, and own problems need one word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import check_same

from lab.errors import UserError
from lab.trace.trace import load
from real import TrainConfig, train
from real.cli import main
from real.tiny import CHECKPOINT, problems

WORDS = ["--n-votes", "8", "--n-samples", "4", "--epochs", "1", "--max-response-tokens", "30"]


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of eight last-digit sums."""
    rows = [{"prompt": p.prompt, "answer": p.answer} for p in problems(8, 3)]
    (tmp_path / "own.json").write_text(json.dumps(rows))
    return str(tmp_path / "own.json")


def test_a_comparison_whose_model_gives_no_answers_is_refused_once(
    tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "all"
    words = ["--problems", own, "--model", str(CHECKPOINT), "--out", str(out), "--quiet", *WORDS]
    assert main(["compare", "--arms", "ttrl", "guard", "--seeds", "0", "1", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "notice" not in line]
    assert len(lines) == 1 and "100% of 32 responses of a pilot have no answer" in lines[0]
    for word in ("end in '', '', '';", "--prompt-suffix", "--max-response-tokens", "--stop"):
        assert word in lines[0]
    assert not list(out.rglob("run.json"))


def test_the_pilot_changes_no_bit_of_a_run(own: str):
    config = TrainConfig(
        problems=own, model="tiny", n_votes=8, n_samples=4, epochs=1, batch_size=4, eval_samples=2
    )
    check_same(train(config), train(replace(config, max_unread=1.0)))


def test_max_unread_is_a_bound(own: str):
    config = TrainConfig(problems=own, model=str(CHECKPOINT), max_response_tokens=30, epochs=1)
    with pytest.raises(UserError, match="train all the same with --max-unread 1"):
        train(config)


def test_own_problems_on_the_embedded_model_take_one_command(
    tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "all"
    words = ["compare", "--problems", own, "--arms", "ttrl", "--seeds", "0", "--out", str(out)]
    assert main([*words, *WORDS[:6]]) == 2
    assert "--model tiny" in capsys.readouterr().err
    assert main([*words, *WORDS[:6], "--model", "tiny", "--batch-size", "8"]) == 0
    said = capsys.readouterr()
    assert "unread 0.0% -> " in said.out
    assert "100%  run 1.0/1, ttrl, seed 0: step 1/1, pass@1 0." in said.err
    run = load(out / "ttrl" / "seed-0").run
    assert run.config["max_response_tokens"] == 22 and run.config["prompt_suffix"] == ""
    assert main([*words, "--model", str(CHECKPOINT), "--seeds", "5", "6"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "notice" not in line]
    assert "the model has 64 positions" in line and "--max-response-tokens 32" in line
