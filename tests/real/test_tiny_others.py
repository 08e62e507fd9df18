import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.base.errors import UserError
from real import TrainConfig, train
from real.tiny import ARITHMETIC, CLOSED, COLLATZ, problems_of, tasks
from real.tiny.pretrain import RECIPES, measure
from real.tiny.tasks import closed, collatz_steps, encode, is_held_out, lead, response_text
from real.vote.tool import tool_verdicts

DIGITS = [tasks.IDS[str(digit)] for digit in range(10)]


def shipped(task):
    return AutoModelForCausalLM.from_pretrained(task.checkpoint, use_safetensors=True).eval()


def test_neither_rewording_nor_calculator_gives_anything_away():
    prompts = [problem.prompt for problem in COLLATZ.problems(20)]
    assert [COLLATZ.reworded(prompt) for prompt in prompts] == [None] * 20
    for prompt in prompts:
        assert not tool_verdicts([response_text(collatz_steps(prompt[:-1]))], prompt)[0]
    assert ARITHMETIC.reworded("3+0-1*6+0=") is not None


def test_the_start_of_collatz_is_as_stated():
    record = json.loads((COLLATZ.checkpoint / "recipe.json").read_text())
    found = measure(shipped(COLLATZ), seed=1, n_votes=32, task=COLLATZ)
    assert found.pass_at_1 == pytest.approx(record["measured"]["pass_at_1"], abs=0.02)
    assert 0.6 <= found.pass_at_1 <= 0.75 and 0.68 <= found.maj_accuracy <= 0.82
    assert found.strong_rivals >= 0.25 and found.parseable > 0.99
    assert (COLLATZ.checkpoint / "model.safetensors").stat().st_size < 500_000
    assert record["recipe"] == asdict(RECIPES["collatz"]) and record["task"] == "collatz"
    tokenizers = [AutoTokenizer.from_pretrained(t.checkpoint) for t in (ARITHMETIC, COLLATZ)]
    assert len({tokenizer.backend_tokenizer.to_str() for tokenizer in tokenizers}) == 1


@pytest.fixture(scope="module")
def start():
    return shipped(CLOSED)


def digit_shares(model, prompts, temperature=0.6):
    """(N, 10) probabilities of the digits in the box."""
    read = torch.tensor([encode(prompt + "\\boxed{") for prompt in prompts])
    with torch.no_grad():
        logits = model(input_ids=read).logits[:, -1] / temperature
    return torch.softmax(logits, -1)[:, DIGITS].numpy()


@pytest.mark.parametrize(("wrong", "rival_lead"), [(0.2, 60), (0.4, 40), (0.58, 20)])
def test_problem_sets_are_what_the_settings_ask(wrong, rival_lead):
    config = TrainConfig(tiny_task="closed", tiny_wrong=wrong, tiny_lead=rival_lead)
    found = problems_of(config)
    questions = [problem.prompt[:-1] for problem in found]
    leads = [lead(question) for question in questions]
    assert set(leads) == {40, -rival_lead} and len(set(questions)) == 64
    for n in range(1, 65):
        assert abs(sum(own < 0 for own in leads[:n]) - n * wrong) < 1 - 1e-9
    assert all(map(is_held_out, questions))
    assert all(p.answer == q[-1] for p, q in zip(found, questions, strict=True))
    longer = closed(wrong, rival_lead).problems(70)
    assert [p.prompt for p in longer][:64] == [p.prompt for p in found]


def test_more_problems_than_there_are_end_at_once():
    config = TrainConfig(tiny_task="closed", tiny_wrong=0.6, tiny_lead=60, n_problems=742)
    assert len(problems_of(config)) == 742
    with pytest.raises(UserError, match="743 different questions: the task closed has 742"):
        problems_of(TrainConfig(tiny_task="closed", n_problems=743))
    with pytest.raises(UserError, match="20000 different questions: the task collatz has 11250"):
        problems_of(TrainConfig(tiny_task="collatz", n_problems=20000))


@pytest.mark.slow
def test_the_start_of_closed_answers_is_as_stated(start):
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
        ahead = shares_NA[range(200), [int(p.prompt[-2]) for p in problems]]
        ahead = 100 * (ahead - shares_NA[range(200), rivals])
        is_wrong = np.array([lead(problem.prompt[:-1]) < 0 for problem in problems])
        assert ahead[is_wrong].mean() == pytest.approx(-made, abs=3)
        assert ahead[~is_wrong].mean() == pytest.approx(40, abs=5)
    record = json.loads((CLOSED.checkpoint / "recipe.json").read_text())
    assert (CLOSED.checkpoint / "model.safetensors").stat().st_size < 500_000
    assert record["recipe"] == asdict(RECIPES["closed"]) and record["task"] == "closed"


def test_training_gives_no_response_that_the_start_did_not(tmp_path, start):
    small = {"n_problems": 16, "n_votes": 16, "n_samples": 16, "epochs": 3, "eval_samples": 2}
    config = TrainConfig(tiny_task="closed", lr=1e-3, save_model=True, **small)
    trace = train(config, tmp_path / "whole", progress=False)
    assert trace.run.task == "tiny-closed" and trace.run.config["tiny_wrong"] == 0.4
    assert trace.answers.text.str.fullmatch(r"\d").all()
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model")
    prompts = [problem.prompt for problem in closed(0.4, 40).problems(16)]
    before, after = (digit_shares(model, prompts) for model in (start, trained.eval()))
    assert after.sum(axis=1).min() > 0.99
    assert after.max(axis=1).mean() > before.max(axis=1).mean() + 0.1  # towards consensus
