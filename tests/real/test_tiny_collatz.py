"""The second tiny task: its steps, its checkpoint, and every command with one setting."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.base.errors import UserError
from lab.trace.trace import load
from real import TrainConfig
from real.__main__ import main
from real.problems.load import read_problems
from real.tiny import ARITHMETIC, COLLATZ, collatz, pretrain
from real.tiny.measure import measure
from real.tiny.pretrain import RECIPES
from real.tiny.task import is_held_out
from real.tiny.vocabulary import encode
from real.vote.tool import tool_verdicts

RECORD = json.loads((COLLATZ.checkpoint / "recipe.json").read_text())
TASK = ["--tiny-task", "collatz"]
QUICK = [*TASK, "--n-problems", "2", "--n-votes", "4", "--n-samples", "4", "--epochs", "1"]


@given(st.integers(0, 99999))
def test_steps_follow_the_map_and_lengths_are_fixed(value: int):
    number = f"{value:05d}"
    for step in collatz.steps(number):
        value = (3 * value + 1) % 100000 if value % 2 else value // 2
        assert int(step) == value and len(step) == 5
    assert COLLATZ.answer(number) == f"{value:05d}"
    assert len(encode(f"{number}=")) == COLLATZ.prompt_tokens
    assert len(encode(collatz.solution(number))) + 1 == COLLATZ.response_tokens
    settled = TrainConfig(tiny_task="collatz").settled()
    assert COLLATZ.response_tokens <= (settled.max_response_tokens or 0)


def test_the_example_of_the_docs():
    assert collatz.solution("48213") == r"44640>22320>\boxed{11160}"


def test_examples_are_right_and_held_out_numbers_are_kept_apart():
    texts = pretrain.training_tokens(200, 0.0, seed=0, task=COLLATZ)
    assert texts.shape == (200, COLLATZ.prompt_tokens + COLLATZ.response_tokens)
    numbers = COLLATZ.sample_distinct(200, np.random.default_rng(0), held_out=False)
    assert [encode(f"{n}={collatz.solution(n)}") for n in numbers] == texts[:, :-1].tolist()
    assert not any(map(is_held_out, numbers))
    assert all(is_held_out(problem.prompt[:-1]) for problem in COLLATZ.problems(100))
    with pytest.raises(ValueError, match="no slips are planted"):
        COLLATZ.example("48213", 0.1, np.random.default_rng(0))


def test_more_problems_than_there_are_end_at_once():
    with pytest.raises(UserError, match="20000 different questions: the task collatz has 11250"):
        read_problems(TrainConfig(tiny_task="collatz", n_problems=20000))


def test_neither_rewording_nor_calculator_gives_anything_away():
    prompts = [problem.prompt for problem in COLLATZ.problems(20)]
    assert [COLLATZ.reworded(prompt) for prompt in prompts] == [None] * 20
    right = [collatz.solution(prompt[:-1]) for prompt in prompts]
    assert not any(
        tool_verdicts([text], prompt)[0] for text, prompt in zip(right, prompts, strict=True)
    )
    assert ARITHMETIC.reworded("3+0-1*6+0=") is not None


def test_the_start_is_as_stated():
    model: Any = AutoModelForCausalLM.from_pretrained(COLLATZ.checkpoint, use_safetensors=True)
    found = measure(model.eval(), seed=1, n_votes=32, task=COLLATZ)
    assert found.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.02)
    assert 0.6 <= found.pass_at_1 <= 0.75 and 0.68 <= found.maj_accuracy <= 0.82
    assert found.strong_rivals >= 0.25 and found.parseable > 0.99
    assert (COLLATZ.checkpoint / "model.safetensors").stat().st_size < 500_000
    assert RECORD["recipe"] == asdict(RECIPES["collatz"]) and RECORD["task"] == "collatz"
    tokenizers = [AutoTokenizer.from_pretrained(t.checkpoint) for t in (ARITHMETIC, COLLATZ)]
    assert len({tokenizer.backend_tokenizer.to_str() for tokenizer in tokenizers}) == 1


def test_a_small_version_is_built_again_to_the_bit(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(pretrain, "measure", partial(measure, n_problems=4, n_votes=4))
    small = pretrain.Recipe(steps=4, batch_size=8, warmup_steps=2, layers=1, heads=8, slip_rate=0)
    monkeypatch.setitem(RECIPES, "collatz", small)
    for name, seed in [("a", "3"), ("b", "3"), ("c", "4")]:
        words = ["make-tiny", "--task", "collatz", "--seed", seed, "--quiet"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    made = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert (made["task"], made["recipe"]) == ("collatz", asdict(small))


def test_a_run_has_the_task_and_the_model(tmp_path: Path):
    assert main(["run", *QUICK, "--rule", "self_harmony", "--quiet", "--out", str(tmp_path)]) == 0
    trace = load(tmp_path)
    assert trace.run.task == "tiny-collatz" and trace.run.config["tiny_task"] == "collatz"
    assert trace.run.extra["paraphrases_missing"] == 2
    assert trace.answers.text.str.fullmatch(r"\d+").mean() > 0.9


def test_plan_and_measure_take_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", *TASK]) == 0
    file = tmp_path / "response.safetensors"
    words = ["--responses", "4", "--weights", "64", "--quiet", "--out", str(file)]
    assert main(["measure", *QUICK, *words]) == 0
    assert "2 problems" in capsys.readouterr().out and file.is_file()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tiny_verifies": True}, "tiny_verifies = true: no model of tiny_task = collatz"),
        ({"problems": "amc", "model": "x"}, "tiny_task = collatz: problems = amc are not the tiny"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(values: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        TrainConfig(tiny_task="collatz", **values)
