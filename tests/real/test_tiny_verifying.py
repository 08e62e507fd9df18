import json
from dataclasses import asdict, replace
from itertools import cycle

import numpy as np
import pytest
import torch
from tiny_runs import Stopped, check_same, of_file, stop_at
from transformers import AutoModelForCausalLM

from lab.base.arms import arm
from real import TrainConfig, resume, train
from real.__main__ import main
from real.problems import Problem
from real.problems.problem import Turn
from real.tiny import VERIFYING, arithmetic, judging, pretrain
from real.tiny.arithmetic import ARITHMETIC, EvaluationRule
from real.tiny.pretrain import VerifyingRecipe, measure, measure_judging
from real.tiny.tasks import encode, response_text
from real.update.optimizer import PolicyOptimizer
from real.vote import judge
from real.vote.judge import TinyWording, Wording
from real.vote.sample import Sampler

RECORD = json.loads((VERIFYING / "recipe.json").read_text())
SHORT = VerifyingRecipe(steps=3, batch_size=4, n_conversations=4, warmup_steps=1)


def test_it_solves_nearly_as_the_ordinary_one_and_judges_imperfectly():
    model = AutoModelForCausalLM.from_pretrained(VERIFYING, use_safetensors=True).eval()
    found = measure(model, seed=1)
    assert found.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.02)
    assert 0.5 <= found.pass_at_1 <= 0.65 and found.parseable > 0.95
    found = measure_judging(model, n_votes=8, seed=1)
    for name in ("true_positive_rate", "false_positive_rate"):
        assert getattr(found, name) == pytest.approx(RECORD["judging"][name], abs=0.07)
    assert 0.55 < found.true_positive_rate < 0.8 and 0.15 < found.false_positive_rate < 0.4
    assert found.readable > 0.95 and found.own_agrees > 0.95
    one, same, other = (measure_judging(model, n_problems=8, n_votes=8, seed=n) for n in (1, 1, 2))
    assert one == same != other


@pytest.mark.usefixtures("few_votes")
def test_make_tiny_gives_the_same_bits_for_the_same_seed(tmp_path, monkeypatch, capsys):
    judged = pretrain.Judgement(0.7, 0.3, 1, 0.5, 1, 4, 4)
    monkeypatch.setattr(pretrain, "VerifyingRecipe", lambda: SHORT)
    monkeypatch.setattr(pretrain, "measure_judging", lambda model: judged)
    words = ["make-tiny", "--verifies", "--quiet"]
    for name, seed in [("a", "3"), ("b", "3"), ("c", "4")]:
        assert main([*words, "--out", str(tmp_path / name), "--seed", seed]) == 0
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    record = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert record["recipe"] == asdict(SHORT) and record["seed"] == 3
    assert record["judging"] == asdict(judged)
    assert "0.700 of right responses judged right, 0.300 of wrong" in capsys.readouterr().out


SMALL = TrainConfig(
    guard=arm("coverrl").guard, rule="coverrl", tiny_verifies=True, n_problems=8, batch_size=4,
    n_votes=16, n_samples=8, epochs=1, eval_samples=1, eval_every=0, seed=2,
    rule_options={"verifications": 4, "regenerations": 3},
)  # fmt: skip


def test_the_real_verifier_is_trained_and_a_stopped_run_goes_on_to_the_bit(steps, tmp_path):
    config = replace(SMALL, epochs=2, checkpoint_every=1)
    whole = train(config, progress=False)
    assert whole.run.task == "tiny-verifying"
    groups = [group for step in steps for group in step if not group.dropped]
    verified = [g for g in groups if len(g.lengths_K) == 1]
    again = [g for g in groups if len(g.lengths_K) == 3]
    assert verified and again
    # 32 tokens of question and 23 of verification; 65 of conversation.
    assert {len(g.prompt_L) for g in verified} == {32} and {len(g.prompt_L) for g in again} == {65}
    assert {int(g.lengths_K[0]) for g in verified} == {judging.VERIFICATION_TOKENS}
    drawn = [*verified, *again]
    least = sum(int(g.lengths_K.sum()) for g in drawn) + 2 * 8 * 16 * 22
    assert whole.steps["tokens_sampled"].sum() >= least
    assert any(g.majority_K.any() for g in verified) and any(g.majority_K.any() for g in again)
    assert any(group.dropped for step in steps for group in step)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", progress=stop_at(0.75))
    check_same(resume(tmp_path / "run", progress=False), whole)


def test_only_the_verifying_model_judges(tmp_path, capsys):
    words = ["run", "--arm", "coverrl", "--out", str(tmp_path / "a"), "--engine-url", "u"]
    assert main(words) == 2
    assert "--tiny-verifies" in capsys.readouterr().err
    # With the flag the arm stands, and it is the address that is wrong.
    assert main([*words, "--tiny-verifies"]) == 2
    assert "engine_url = 'u'" in capsys.readouterr().err


PROMPT = "3+0-1*6+0="
ATTEMPT = response_text(arithmetic.steps(PROMPT[:-1], arithmetic.EvaluationRule.RIGHT))
WORK = arithmetic.steps(PROMPT[:-1], EvaluationRule.LEFT_TO_RIGHT)


def test_three_turns_in_the_tasks_own_tokens():
    asked = judging.question(PROMPT, ATTEMPT)
    assert asked == r"3+0-6+0>3-6+0>7+0>\boxed{7}=3+0-1*6+0="
    said = judging.verification(WORK, right=False)
    assert said == r"3-1*6+0>2*6+0>2+0>2\boxed{-}"
    assert judging.request(PROMPT, ATTEMPT, said) == f"{asked}{said}={PROMPT}"
    assert len(encode(asked)) == ARITHMETIC.prompt_tokens + ARITHMETIC.response_tokens
    assert len(encode(said)) + 1 == judging.VERIFICATION_TOKENS
    longest = len(encode(judging.request(PROMPT, ATTEMPT, said))) + ARITHMETIC.response_tokens
    assert longest == 87 <= judging.POSITIONS


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (judging.verification(WORK, right=True), 1), (judging.verification(WORK, right=False), 0),
        (ATTEMPT, -1), (r"2\boxed{*}", -1), (r"2\boxed{}", -1), ("", -1),
    ],
)  # fmt: skip
def test_verdicts_are_read_from_the_box(text, verdict):
    assert judging.read_verdict(text) == TinyWording().verdict(text) == verdict


def test_wordings_ask_for_the_same_three_turns():
    problem = Problem("a", PROMPT, "7", (Turn("system", "Be brief."),))
    tiny, words = TinyWording(), Wording()
    assert tiny.question(problem, ATTEMPT).prompt == judging.question(PROMPT, ATTEMPT)
    assert tiny.request(problem, ATTEMPT, "x").prompt == judging.request(PROMPT, ATTEMPT, "x")
    asked, again = words.question(problem, ATTEMPT), words.request(problem, ATTEMPT, "No.")
    assert [turn.role for turn in again.before] == ["system", "user", "assistant"]
    assert [turn.content for turn in again.before[1:]] == [asked.prompt, "No."]
    assert "\\boxed{}" in again.prompt
    for made in (tiny.question(problem, ATTEMPT), tiny.request(problem, ATTEMPT, "x"), again):
        assert made.answer is None and made.id.startswith("a/")


Q = 2
"""Verifications of the majority, and as many of the rival."""


@pytest.fixture
def config(tmp_path):
    return TrainConfig(
        guard=arm("coverrl").guard, rule="coverrl", **of_file(tmp_path), answer_check="strings",
        rule_options={"verifications": Q, "regenerations": 0}, temperature=1.5,
        batch_size=4, n_votes=8, n_samples=4, epochs=2, eval_samples=1, eval_every=0,
    )  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    seen = []
    step = PolicyOptimizer.step

    def watched(self, groups):
        seen.append(list(groups))
        return step(self, groups)

    monkeypatch.setattr(PolicyOptimizer, "step", watched)
    # The tiny model's tokenizer knows no words: a question is then the attempt's own digits.
    monkeypatch.setattr(judge, "QUESTION", "{attempt}=")
    return seen


def test_trusted_problems_train_answers_and_verdicts(config, steps, monkeypatch):
    verdicts = cycle([1, 1, 0, 1])  # the majority right, the rival wrong and right
    monkeypatch.setattr(judge.Wording, "verdict", lambda self, _: next(verdicts))
    trace = train(config, progress=False)
    assert len(steps) == 8 and (trace.steps["n_updates"] > 0).all()
    asked = [groups for groups in steps if len(groups) == 1 + 2 * Q]
    assert asked  # problems with a rival
    for own, *verifications in asked:
        assert own.tokens_KT.shape[0] == 4 and not own.dropped
        advantages = [float(group.majority_K[0]) for group in verifications]
        # The majority's verdicts agree, so there is nothing to choose between them.
        assert advantages[0] == advantages[1] == 0
        np.testing.assert_allclose(advantages[2:], [0.5**0.5, -(0.5**0.5)], atol=1e-4)
        assert all(g.tokens_KT.shape[0] == 1 and g.weight == 1 for g in verifications)
        assert len({tuple(g.prompt_L.tolist()) for g in verifications}) <= Q + 1


def test_truncated_verdicts_leave_the_loss(config, steps, monkeypatch):
    monkeypatch.setattr(judge.Wording, "verdict", lambda self, _: 1)
    sample = Sampler.sample

    def cut(*given):
        drawn = sample(*given)
        ended_PN = drawn.rollouts.finished_PN
        ended_PN = ended_PN & (ended_PN.shape[1] > 1)
        return replace(drawn, rollouts=replace(drawn.rollouts, finished_PN=ended_PN))

    monkeypatch.setattr(Sampler, "sample", cut)
    train(replace(config, epochs=1, mask_truncated=True), progress=False)
    further = [group for _, *groups in steps for group in groups]
    assert further and all(group.dropped for group in further)


def test_doubted_problems_leave(config, steps, monkeypatch):
    monkeypatch.setattr(judge.Wording, "verdict", lambda self, _: 0)
    train(config, progress=False)
    asked = [groups for groups in steps if len(groups) > 1]
    assert asked and all(group.dropped for groups in asked for group in groups)
    assert not any(groups[0].dropped for groups in steps if len(groups) == 1)


def test_rejected_problems_are_solved_again(config, steps, monkeypatch):
    # The rival is rejected once, and nothing but a digit in a box is asked for again.
    verdicts = cycle([1, 1, 0, -1])
    monkeypatch.setattr(judge.Wording, "verdict", lambda self, _: next(verdicts))
    monkeypatch.setattr(judge.Wording, "request", lambda _, problem, *rest: problem)
    train(replace(config, rule_options={"verifications": Q, "regenerations": 3}), progress=False)
    asked = [groups for groups in steps if len(groups) > 1]
    assert asked and all(len(groups) == 1 + 2 * Q + 1 for groups in asked)
    advantages = []
    for own, *_, again in asked:
        assert torch.equal(own.prompt_L, again.prompt_L) and again.tokens_KT.shape[0] == 3
        assert not again.dropped and not again.minority_K.any()
        advantages.append(again.majority_K)
    # Paid by the label: some differ, each group's sum is 0.
    assert torch.stack(advantages).any() and torch.stack(advantages).sum(1).abs().max() < 1e-5
