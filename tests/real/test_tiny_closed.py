"""The third tiny task: its shares of votes, problem sets, checkpoint and runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import Stopped, check_same, stop_at
from transformers import AutoModelForCausalLM

from lab.base.errors import UserError
from real import TrainConfig, resume, train
from real.__main__ import main
from real.problems.load import read_problems
from real.tiny import CLOSED, pretrain
from real.tiny.closed import closed, lead, vote_shares
from real.tiny.measure import boxed_number, measure
from real.tiny.pretrain import RECIPES
from real.tiny.task import is_held_out
from real.tiny.vocabulary import EOS_ID, IDS, encode

RECORD = json.loads((CLOSED.checkpoint / "recipe.json").read_text())
TASK = ["--tiny-task", "closed"]
DIGITS = [IDS[str(digit)] for digit in range(10)]
RIGHT, WRONG = "733377377333", "737377377773"


@pytest.fixture(scope="module")
def start() -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(CLOSED.checkpoint, use_safetensors=True)
    return model.eval()


def digit_shares(model: Any, prompts: list[str], temperature: float = 0.6) -> np.ndarray:
    """(N, 10) probabilities of the digits in the box."""
    read = torch.tensor([encode(prompt + "\\boxed{") for prompt in prompts])
    with torch.no_grad():
        logits = model(input_ids=read).logits[:, -1] / temperature
    return torch.softmax(logits, -1)[:, DIGITS].numpy()


def test_leads_follow_the_copies():
    assert [lead(q) for q in (RIGHT, WRONG, "3" * 11 + "7", "7" + "3" * 11)] == [20, -40, -80, 80]
    shares_A = vote_shares(WRONG)
    assert shares_A.sum() == pytest.approx(1) and shares_A.min() == pytest.approx(0.01)
    assert shares_A[7] - shares_A[3] == pytest.approx(0.4) and CLOSED.answer(WRONG) == "3"


def test_examples_have_the_shares_and_one_token():
    texts = pretrain.training_tokens(300, 0.0, seed=0, task=CLOSED)
    assert texts.shape == (300, CLOSED.prompt_tokens + CLOSED.response_tokens)
    assert (texts[:, [-4, -2, -1]] == [*encode("\\boxed{}"), EOS_ID]).all()
    rng = np.random.default_rng(0)
    drawn = [boxed_number(CLOSED.example(WRONG, 0.0, rng)) for _ in range(4000)]
    weights_A = vote_shares(WRONG) ** 0.6
    found_A = np.bincount(drawn, minlength=10) / len(drawn)
    assert found_A == pytest.approx(weights_A / weights_A.sum(), abs=0.03)


@pytest.mark.parametrize(("wrong", "rival_lead"), [(0.2, 60), (0.4, 40), (0.6, 20)])
def test_problem_sets_are_what_the_settings_ask(wrong: float, rival_lead: int):
    config = TrainConfig(tiny_task="closed", tiny_wrong=wrong, tiny_lead=rival_lead)  # pyright: ignore
    found = read_problems(config)
    questions = [problem.prompt[:-1] for problem in found]
    leads = [lead(question) for question in questions]
    assert set(leads) == {40, -rival_lead} and len(set(questions)) == 64
    for n in range(1, 65):
        assert abs(sum(own < 0 for own in leads[:n]) - n * wrong) < 1
    assert all(map(is_held_out, questions))
    assert all(p.answer == q[-1] for p, q in zip(found, questions, strict=True))
    longer = closed(wrong, rival_lead).problems(70)
    assert [p.prompt for p in longer][:64] == [p.prompt for p in found]


def test_more_problems_than_the_rarest_lead_has_end_at_once():
    config = TrainConfig(tiny_task="closed", tiny_wrong=0.6, tiny_lead=60, n_problems=742)
    assert len(read_problems(config)) == 742
    with pytest.raises(UserError, match="743 different questions: the task closed has 742"):
        read_problems(TrainConfig(tiny_task="closed", n_problems=743))


def test_the_start_is_as_stated(start: Any):
    stated = ((0.2, 60, 50, 0.03), (0.4, 40, 38, 0.03), (0.6, 20, 20, 0.08))
    for wrong, rival_lead, made, error in stated:
        task = closed(wrong, rival_lead)
        found = measure(start, n_problems=200, seed=1, task=task)
        assert found.maj_accuracy == pytest.approx(1 - wrong, abs=error)
        assert found.parseable == 1
        problems = task.problems(200)
        shares_NA = digit_shares(start, [problem.prompt for problem in problems])
        assert shares_NA.sum(axis=1).min() > 0.99 and shares_NA.min() > 1e-4
        rivals = np.array([int(problem.prompt[0]) for problem in problems])
        ahead = shares_NA[range(200), [int(p.answer) for p in problems]]
        ahead = 100 * (ahead - shares_NA[range(200), rivals])
        is_wrong = np.array([lead(problem.prompt[:-1]) < 0 for problem in problems])
        assert ahead[is_wrong].mean() == pytest.approx(-made, abs=3)
        assert ahead[~is_wrong].mean() == pytest.approx(40, abs=5)
    assert (CLOSED.checkpoint / "model.safetensors").stat().st_size < 500_000
    assert RECORD["recipe"] == asdict(RECIPES["closed"]) and RECORD["task"] == "closed"


def test_training_gives_no_response_that_the_start_did_not(tmp_path: Path, start: Any):
    small = {"n_problems": 16, "n_votes": 16, "n_samples": 16, "epochs": 3, "eval_samples": 2}
    config = TrainConfig(tiny_task="closed", lr=1e-3, save_model=True, **small)  # pyright: ignore
    trace = train(config, tmp_path / "whole", progress=False)
    assert trace.run.task == "tiny-closed" and trace.run.config["tiny_wrong"] == 0.4
    assert trace.answers.text.str.fullmatch(r"\d").all()
    trained: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model")
    prompts = [problem.prompt for problem in closed(0.4, 40).problems(16)]
    before, after = (digit_shares(model, prompts) for model in (start, trained.eval()))
    assert after.sum(axis=1).min() > 0.99
    assert after.max(axis=1).mean() > before.max(axis=1).mean() + 0.1  # towards consensus
    with pytest.raises(Stopped):
        train(config, tmp_path / "stopped", progress=stop_at(0.75))
    check_same(resume(tmp_path / "stopped", progress=False), trace)


def test_plan_and_rebuild_take_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert main(["plan", *TASK]) == 0
    small = pretrain.Recipe(steps=4, batch_size=8, warmup_steps=2, layers=1, heads=8, slip_rate=0)
    monkeypatch.setitem(RECIPES, "closed", small)
    for name in "ab":
        words = ["make-tiny", "--task", "closed", "--seed", "3", "--quiet"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    first, second = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tiny_wrong": 0.3}, "tiny_wrong, tiny_lead: for tiny_task = closed alone"),
        ({"tiny_task": "collatz", "tiny_lead": 60}, "for tiny_task = closed alone"),
        ({"tiny_task": "closed", "tiny_wrong": 0.7}, "tiny_wrong = 0.7: must"),
        ({"tiny_task": "closed", "tiny_lead": 30}, "tiny_lead = 30: must be one of 20, 40, 60"),
        ({"tiny_task": "closed", "tiny_verifies": True}, "no model of tiny_task = closed"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(values: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        TrainConfig(**values)
