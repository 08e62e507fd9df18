import hashlib
import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.base.errors import UserError
from real.__main__ import main
from real.tiny import CHECKPOINT, TASKS, judging, pretrain
from real.tiny.pretrain import Recipe, boxed_number, build, measure

SHORT = Recipe(steps=4, batch_size=8, warmup_steps=2, layers=1, heads=8, slip_rate=0)
RECORD = json.loads((CHECKPOINT / "recipe.json").read_text())


@pytest.mark.usefixtures("few_votes")
def test_a_built_folder_loads_and_is_never_replaced(tmp_path, monkeypatch, capsys):
    """The same seed gives the same bits, another one others."""
    monkeypatch.setitem(pretrain.RECIPES, "collatz", SHORT)
    target = tmp_path / "new" / "tiny"
    words = ["make-tiny", "--task", "collatz", "--quiet", "--out", str(target), "--seed"]
    assert main([*words, "3"]) == 0
    assert {p.name for p in target.iterdir()} == {p.name for p in CHECKPOINT.iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(target, use_safetensors=True)
    accuracy = pretrain.measure(loaded, task=TASKS["collatz"])
    assert f"pass@1 {accuracy.pass_at_1:.3f}, majority" in capsys.readouterr().out
    record = json.loads((target / "recipe.json").read_text())
    made = {"task": "collatz", "recipe": asdict(SHORT), "seed": 3}
    assert record == {**made, "measured": asdict(accuracy)}
    torch.rand(1)
    trained, other = (
        dict(pretrain.train_model(SHORT, seed, task=TASKS["collatz"]).named_parameters())
        for seed in (3, 4)
    )
    for name, weight in loaded.named_parameters():
        assert weight.dtype == trained[name].dtype == torch.float32
        assert torch.equal(weight, trained[name]), name
    assert not any(torch.equal(weight, trained[name]) for name, weight in other.items())
    before = (target / "model.safetensors").read_bytes()
    assert main([*words, "4"]) == 2
    assert "tiny: is not empty" in capsys.readouterr().err
    assert (target / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_build_that_cannot_be_written_or_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_, **__):
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
        recipe = Recipe(steps=125, batch_size=8, slip_rate=0.1)
        made = pretrain.solving_batches(recipe, seed=0, task=TASKS[name])
    content = b"".join(np.asarray(tokens, np.int64).tobytes() for tokens in made)
    assert hashlib.sha256(content).hexdigest().startswith(digest)


def test_the_start_lies_in_the_stated_band():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, use_safetensors=True)
    accuracy = measure(model.eval(), seed=1)
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
