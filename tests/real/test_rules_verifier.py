"""CoVerRL in the trainer: doubted problems leave, and the verifier is trained on its verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import real.trainer
import real.update.optimizer
from lab.base.arms import arm
from real import TrainConfig, train
from real.tiny import ARITHMETIC, CHECKPOINT
from real.update.packing import Group
from real.vote import further

Q = 2
"""Verifications of the majority, and as many of the rival."""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    path = tmp_path / "problems.json"
    rows = [{"prompt": p.prompt, "answer": p.answer} for p in ARITHMETIC.problems(4)]
    path.write_text(json.dumps(rows))
    return TrainConfig(
        guard=arm("coverrl").guard, rule="coverrl",
        rule_options={"verifications": Q, "regenerations": 0},
        problems=str(path), model=str(CHECKPOINT), prompt_suffix="", answer_check="strings",
        max_response_tokens=22, lr=3e-4, save_model=False, threads=1, temperature=1.5,
        batch_size=4, n_votes=8, n_samples=4, epochs=2, eval_samples=1, eval_every=0,
    )  # fmt: skip


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Group]]:
    seen: list[list[Group]] = []
    step = real.update.optimizer.PolicyOptimizer.step

    def watched(self: Any, groups: Any) -> Any:
        seen.append(list(groups))
        return step(self, groups)

    monkeypatch.setattr(real.update.optimizer.PolicyOptimizer, "step", watched)
    # The tiny model's tokenizer knows no words: a question is then the attempt's own digits.
    monkeypatch.setattr(further, "_QUESTION", "{attempt}=")
    return seen


def test_trusted_problems_train_answers_and_verdicts(config, steps, monkeypatch):
    verdicts = cycle([1, 1, 0, 1])  # the majority right, the rival wrong and right
    monkeypatch.setattr(further.Wording, "verdict", lambda self, _: next(verdicts))
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


def test_doubted_problems_leave(config, steps, monkeypatch):
    monkeypatch.setattr(further.Wording, "verdict", lambda self, _: 0)
    train(config, progress=False)
    asked = [groups for groups in steps if len(groups) > 1]
    assert asked and all(group.dropped for groups in asked for group in groups)
    assert not any(groups[0].dropped for groups in steps if len(groups) == 1)


def test_rejected_problems_are_solved_again(config, steps, monkeypatch):
    # The rival is rejected once, and nothing but a digit in a box is asked for again.
    verdicts = cycle([1, 1, 0, -1])
    monkeypatch.setattr(further.Wording, "verdict", lambda self, _: next(verdicts))
    monkeypatch.setattr(further.Wording, "request", lambda _, problem, *rest: problem)
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
