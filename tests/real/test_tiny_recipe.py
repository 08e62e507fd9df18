"""The supervised recipe: same seed, same bits; a full rebuild is as accurate as what is shipped."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.base.errors import UserError
from real.tiny import CHECKPOINT, arithmetic, pretrain
from real.tiny.arithmetic import PROMPT_TOKENS, RESPONSE_TOKENS
from real.tiny.measure import measure
from real.tiny.pretrain import Recipe, build
from real.tiny.vocabulary import EOS_ID, decode

SHORT = Recipe(steps=4, batch_size=8, warmup_steps=2)


@pytest.fixture
def few_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of a model that has learnt nothing needs no 4096 responses."""
    monkeypatch.setattr(pretrain, "measure", partial(measure, n_problems=4, n_votes=4))


@pytest.mark.usefixtures("few_votes")
def test_the_same_seed_gives_the_same_bits(tmp_path: Path):
    for name, seed in [("a", 3), ("b", 3), ("c", 4)]:
        torch.rand(1)
        build(tmp_path / name, seed=seed, progress=False, recipe=SHORT)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    records = {name: (tmp_path / name / "recipe.json").read_text() for name in "ab"}
    assert records["a"] == records["b"]


@pytest.mark.usefixtures("few_votes")
def test_a_built_folder_loads_and_tells_its_recipe(tmp_path: Path):
    accuracy = build(tmp_path / "new" / "tiny", seed=3, progress=False, recipe=SHORT)
    record = json.loads((tmp_path / "new" / "tiny" / "recipe.json").read_text())
    made = {"task": "arithmetic", "recipe": asdict(SHORT), "seed": 3}
    assert record == {**made, "measured": asdict(accuracy)}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "tiny", use_safetensors=True)
    trained = pretrain.train_model(SHORT, seed=3)
    for (name, ours), theirs in zip(trained.named_parameters(), loaded.parameters(), strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        assert torch.equal(ours, theirs), name


@pytest.mark.usefixtures("few_votes")
def test_an_existing_folder_is_not_replaced_unasked(tmp_path: Path):
    target = tmp_path / "tiny"
    build(target, seed=3, progress=False, recipe=SHORT)
    before = (target / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        build(target, seed=4, progress=False, recipe=SHORT)
    assert (target / "model.safetensors").read_bytes() == before
    build(target, seed=4, progress=False, recipe=SHORT, overwrite=True)
    assert (target / "model.safetensors").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_folder_that_is_no_tiny_checkpoint_is_never_replaced(tmp_path: Path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(UserError, match="not a tiny checkpoint"):
        build(tmp_path / "thesis", progress=False, recipe=SHORT, overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"


def test_a_bad_path_fails_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def train_model(*_: object) -> None:
        pytest.fail("trained before looking at the path")

    monkeypatch.setattr(pretrain, "train_model", train_model)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*choose a folder"):
        build(tmp_path / "file" / "tiny", progress=False)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "tiny", progress=False, recipe=SHORT)
    assert list(tmp_path.iterdir()) == []


def test_training_text_is_the_planted_mixture():
    tokens = pretrain.training_tokens(3000, slip_rate=0.0, seed=0)
    assert tokens.shape == (3000, PROMPT_TOKENS + RESPONSE_TOKENS)
    assert (tokens[:, -1] == EOS_ID).all()
    expected = dict.fromkeys(arithmetic.EvaluationRule, 0.0)
    seen = dict.fromkeys(arithmetic.EvaluationRule, 0)
    for row in tokens.tolist():
        prompt, response = decode(row[:PROMPT_TOKENS]), decode(row[PROMPT_TOKENS:])
        expression = arithmetic.Expression.parse(prompt)
        by_rule = {
            rule: arithmetic.solution(expression, rule) for rule in arithmetic.EvaluationRule
        }
        assert response in by_rule.values()
        if len(set(by_rule.values())) == len(by_rule):
            for rule, share in arithmetic.shares(expression.operators).items():
                expected[rule] += share
                seen[rule] += response == by_rule[rule]
    for rule in arithmetic.EvaluationRule:
        # About four standard deviations of a count of this size.
        assert abs(seen[rule] - expected[rule]) < 4 * np.sqrt(expected[rule]), rule


def test_slips_come_at_their_rate():
    faultless = pretrain.training_tokens(2000, slip_rate=0.0, seed=0)
    assert np.array_equal(faultless, pretrain.training_tokens(2000, slip_rate=0.0, seed=0))
    rows = pretrain.training_tokens(2000, slip_rate=0.1, seed=0).tolist()
    texts = [(decode(r[:PROMPT_TOKENS]), decode(r[PROMPT_TOKENS:])) for r in rows]
    slipped = np.mean(
        [
            response
            not in {
                arithmetic.solution(arithmetic.Expression.parse(prompt), r)
                for r in arithmetic.EvaluationRule
            }
            for prompt, response in texts
        ]
    )
    # A response stays faultless if none of its four steps slips; four standard errors.
    assert abs(slipped - (1 - 0.9**4)) < 0.045


@pytest.mark.slow
def test_a_rebuild_is_as_accurate_as_the_shipped_checkpoint(tmp_path: Path):
    shipped = json.loads((CHECKPOINT / "recipe.json").read_text())
    assert shipped["recipe"] == asdict(Recipe())
    rebuilt = build(tmp_path / "tiny", seed=shipped["seed"], progress=False)
    assert rebuilt.pass_at_1 == pytest.approx(shipped["measured"]["pass_at_1"], abs=0.05)
    assert rebuilt.parseable > 0.95
