"""The tiny model that judges: what is shipped, how it is made, and CoVerRL on it without script."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_runs import Stopped, check_same, stop_at
from transformers import AutoModelForCausalLM

import real.run
import real.update.optimizer
from lab.base.arms import arm
from lab.base.errors import UserError
from real import TrainConfig, resume, train
from real.__main__ import main
from real.problems import ProblemSet
from real.run import prepare
from real.tiny import CHECKPOINT, VERIFYING, judging, pretrain
from real.tiny.pretrain import VerifyingRecipe, build_verifying, measure, measure_judging
from real.update.packing import Group

RECORD = json.loads((VERIFYING / "recipe.json").read_text())
SHORT = VerifyingRecipe(steps=3, batch_size=4, n_conversations=4, warmup_steps=1)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(VERIFYING, use_safetensors=True).eval()


def test_it_is_the_ordinary_model_with_more_positions(model):
    ordinary = json.loads((CHECKPOINT / "config.json").read_text())
    ours = json.loads((VERIFYING / "config.json").read_text())
    assert ours == {**ordinary, "max_position_embeddings": judging.POSITIONS}
    files = {path.name for path in VERIFYING.iterdir()}
    assert files == {path.name for path in CHECKPOINT.iterdir()}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (VERIFYING / name).read_text() == (CHECKPOINT / name).read_text()
    assert RECORD["recipe"] == asdict(VerifyingRecipe())


def test_it_solves_nearly_as_the_ordinary_one(model):
    found = measure(model, seed=1)
    assert found.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.02)
    assert 0.5 <= found.pass_at_1 <= 0.65 and found.parseable > 0.95


def test_it_judges_imperfectly(model):
    found = measure_judging(model, n_votes=8, seed=1)
    for name in ("true_positive_rate", "false_positive_rate"):
        assert getattr(found, name) == pytest.approx(RECORD["judging"][name], abs=0.07)
    assert 0.55 < found.true_positive_rate < 0.8 and 0.15 < found.false_positive_rate < 0.4
    assert found.readable > 0.95 and found.own_agrees > 0.95
    again = measure_judging(model, n_votes=8, seed=1)
    assert again == found != measure_judging(model, n_votes=8, seed=2)


@pytest.fixture
def few_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain, "measure", partial(measure, n_problems=4, n_votes=4))
    judged = partial(measure_judging, n_problems=8, n_votes=8)
    monkeypatch.setattr(pretrain, "measure_judging", judged)


@pytest.mark.usefixtures("few_votes")
def test_the_same_seed_gives_the_same_bits(tmp_path):
    for name, seed in [("a", 3), ("b", 3), ("c", 4)]:
        build_verifying(tmp_path / name, seed=seed, progress=False, recipe=SHORT)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    record = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert record["recipe"] == asdict(SHORT) and record["seed"] == 3
    with pytest.raises(UserError, match="exists already"):
        build_verifying(tmp_path / "a", progress=False, recipe=SHORT)


def test_make_tiny(tmp_path, monkeypatch, capsys):
    asked: list[Any] = []
    judged = pretrain.Judgement(0.7, 0.3, 1, 0.5, 1, 4, 4)
    made = pretrain.Accuracy(0.5, 0.6, 1, 0.4, 4, 4), judged
    monkeypatch.setattr(pretrain, "build_verifying", lambda *given: asked.append(given) or made)
    out = tmp_path / "m"
    assert main(["make-tiny", "--out", str(out), "--verifies", "--seed", "2", "--quiet"]) == 0
    assert asked == [(out, 2, False)]
    assert "0.700 of right responses judged right, 0.300 of wrong" in capsys.readouterr().out


SMALL = TrainConfig(
    guard=arm("coverrl").guard, rule="coverrl", tiny_verifies=True, n_problems=8, batch_size=4,
    n_votes=16, n_samples=8, epochs=1, eval_samples=1, eval_every=0, seed=2,
    rule_options={"verifications": 4, "regenerations": 3},
)  # fmt: skip


def test_the_real_verifier_is_trained(monkeypatch):
    steps: list[list[Group]] = []
    step = real.update.optimizer.PolicyOptimizer.step

    def watched(self: Any, groups: Any) -> Any:
        steps.append(list(groups))
        return step(self, groups)

    monkeypatch.setattr(real.update.optimizer.PolicyOptimizer, "step", watched)
    first, second = (train(SMALL, progress=False) for _ in range(2))
    check_same(first, second)
    assert first.run.task == "tiny-verifying"
    groups = [group for step in steps[: len(steps) // 2] for group in step if not group.dropped]
    verified = [g for g in groups if len(g.lengths_K) == 1]
    again = [g for g in groups if len(g.lengths_K) == 3]
    assert verified and again
    # 32 tokens of question and 23 of verification; 65 of conversation.
    assert {len(g.prompt_L) for g in verified} == {32} and {len(g.prompt_L) for g in again} == {65}
    assert {int(g.lengths_K[0]) for g in verified} == {judging.VERIFICATION_TOKENS}
    drawn = [*verified, *again]
    least = sum(int(g.lengths_K.sum()) for g in drawn) + 8 * 16 * 22
    assert first.steps["tokens_sampled"].sum() >= least
    assert any(g.majority_K.any() for g in verified) and any(g.majority_K.any() for g in again)
    assert any(group.dropped for step in steps for group in step)


def test_what_judges_changes_what_is_learned():
    with_judge = train(replace(SMALL, labels="votes"), progress=False)
    alone = train(replace(SMALL, rule="ttrl", rule_options={}), progress=False)
    start = with_judge.visits["visit"] == 0
    pd.testing.assert_frame_equal(with_judge.visits[start], alone.visits[start])
    assert not np.array_equal(with_judge.steps["update_norm"], alone.steps["update_norm"])


def test_a_stopped_run_goes_on_to_the_bit(tmp_path):
    config = replace(SMALL, epochs=2, checkpoint_every=1)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", progress=stop_at(0.75))
    check_same(resume(tmp_path / "run", progress=False), train(config, progress=False))


def test_the_truth_says_nothing(monkeypatch):
    trace, read = train(SMALL, progress=False), real.run.read_problems

    def shifted(config: TrainConfig) -> ProblemSet:
        found = read(config)
        shift = lambda answer: str((int(answer) + 1) % 10)  # noqa: E731
        return replace(found, problems=[replace(p, answer=shift(p.answer)) for p in found])

    monkeypatch.setattr(real.run, "read_problems", shifted)
    other = train(SMALL, progress=False)
    columns = ["loss", "grad_norm", "update_norm", "n_updates", "tokens"]
    pd.testing.assert_frame_equal(trace.steps[columns], other.steps[columns], check_exact=True)
    assert not trace.visits["label_correct"].equals(other.visits["label_correct"])


def test_only_the_verifying_model_judges(tmp_path, capsys):
    with pytest.raises(UserError, match="--tiny-verifies"):
        replace(SMALL, tiny_verifies=False)
    with pytest.raises(UserError, match="tiny_verifies = true: problems = math500 are not"):
        TrainConfig(tiny_verifies=True, problems="math500", model="folder")
    words = ["run", "--arm", "coverrl", "--out", str(tmp_path / "a"), "--n-problems", "x"]
    assert main(words) == 2
    assert "--tiny-verifies" in capsys.readouterr().err
    # With the flag the arm stands, and it is the number that is wrong.
    assert main([*words, "--tiny-verifies"]) == 2
    assert "--n-problems" in capsys.readouterr().err


def test_other_runs_keep_the_ordinary_checkpoint():
    for config, positions in ((TrainConfig(), 64), (TrainConfig(tiny_verifies=True), 96)):
        assert prepare(config.settled()).policy.max_positions == positions
