"""The supervised recipes and the shipped checkpoints: same seed, same bits; the stated start."""

import hashlib
import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.base.errors import UserError
from real.__main__ import main
from real.tiny import CHECKPOINT, TASKS, judging, pretrain
from real.tiny.pretrain import Recipe, boxed_number, build, measure

SHORT = Recipe(steps=4, batch_size=8, warmup_steps=2)
RECORD = json.loads((CHECKPOINT / "recipe.json").read_text())


@pytest.fixture
def few_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of a model that has learnt nothing needs no 4096 responses."""
    monkeypatch.setattr(pretrain, "measure", partial(measure, n_problems=4, n_votes=4))


@pytest.mark.usefixtures("few_votes")
@pytest.mark.parametrize("task", ["collatz"])
def test_the_same_seed_gives_the_same_bits(tmp_path, monkeypatch, task):
    small = Recipe(steps=4, batch_size=8, warmup_steps=2, layers=1, heads=8, slip_rate=0)
    monkeypatch.setitem(pretrain.RECIPES, task, small)
    for name, seed in [("a", "3"), ("b", "3"), ("c", "4")]:
        torch.rand(1)
        words = ["make-tiny", "--task", task, "--seed", seed, "--quiet"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    records = {name: (tmp_path / name / "recipe.json").read_text() for name in "ab"}
    assert records["a"] == records["b"]
    made = json.loads(records["a"])
    assert (made["task"], made["recipe"]) == (task, asdict(small))


@pytest.mark.usefixtures("few_votes")
def test_a_built_folder_loads_and_is_never_replaced(tmp_path):
    target = tmp_path / "new" / "tiny"
    accuracy = build(target, seed=3, progress=False, recipe=SHORT)
    record = json.loads((target / "recipe.json").read_text())
    made = {"task": "arithmetic", "recipe": asdict(SHORT), "seed": 3}
    assert record == {**made, "measured": asdict(accuracy)}
    assert {p.name for p in target.iterdir()} == {p.name for p in CHECKPOINT.iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(target, use_safetensors=True)
    trained = pretrain.train_model(SHORT, seed=3)
    for (name, ours), theirs in zip(trained.named_parameters(), loaded.parameters(), strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        assert torch.equal(ours, theirs), name
    before = (target / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        build(target, seed=4, progress=False, recipe=SHORT)
    assert (target / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_build_that_cannot_be_written_or_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "train_model", interrupt)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*choose"):  # before the training
        build(tmp_path / "file" / "tiny", progress=False)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "tiny", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("arithmetic", "63c7d6dd5bf3"),
        ("collatz", "15012bf24a40"),
        ("closed", "dededb834414"),
        ("judging", "c319d9f95292"),
    ],
)
def test_training_text_is_that_of_the_shipped_checkpoints(name, digest):
    if name == "judging":
        made = judging.conversations(1000, 0.1, seed=0)
    else:
        made = [pretrain.training_tokens(1000, 0.1, seed=0, task=TASKS[name])]
    content = b"".join(np.asarray(tokens, np.int64).tobytes() for tokens in made)
    assert hashlib.sha256(content).hexdigest().startswith(digest)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, local_files_only=True, use_safetensors=True
    ).eval()


def test_the_start_lies_in_the_stated_band(model):
    accuracy = measure(model, seed=1)
    assert 0.55 <= accuracy.pass_at_1 <= 0.65
    assert accuracy.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.02)
    assert 0.7 <= accuracy.maj_accuracy <= 0.85
    assert 0.25 <= accuracy.strong_rivals <= 0.45
    assert accuracy.parseable > 0.95


def test_the_boxed_number_is_read_only_from_a_whole_box():
    whole = {"3+4>\\boxed{7}": 7, "\\boxed{1}>\\boxed{0}": 0, "\\boxed{012}": 12}
    torn = ("3+4>7", "\\boxed{", "\\boxed{7", "\\boxed{+}", "\\boxed{7}>", "")
    for response, number in {**whole, **dict.fromkeys(torn, -1)}.items():
        assert boxed_number(response) == number


@pytest.mark.slow
def test_a_rebuild_is_as_accurate_as_the_shipped_checkpoint(tmp_path):
    assert RECORD["recipe"] == asdict(Recipe())
    rebuilt = build(tmp_path / "tiny", seed=RECORD["seed"], progress=False)
    assert rebuilt.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.05)
    assert rebuilt.parseable > 0.95
