"""Cosines of responses, by n-grams and by a tiny encoder made here."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel

from guard_core.rules import make_rule
from lab.errors import UserError
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT
from real.tiny.vocabulary import build_tokenizer
from real.vote.observe import BUCKET_BITS, Observer, load_embedder, ngrams, similarities

ONE = "First we add three and four, which is seven."
NEAR = "First we add four and three, which is seven."
FAR = "0x9f? Nobody knows; ask again!"


def test_equal_near_and_far_texts():
    found = similarities([[ONE, NEAR, FAR, ONE], [FAR, "", "", ONE]])
    assert found.shape == (2, 4, 4) and found.dtype == np.float64
    assert np.array_equal(found, found.swapaxes(1, 2))
    assert found.min() >= 0 and found.max() == 1
    assert np.array_equal(np.diagonal(found, axis1=1, axis2=2), np.ones((2, 4)))
    assert found[0, 0, 3] == 1
    assert 0.6 < found[0, 0, 1] < 1 and found[0, 0, 2] < 0.1
    assert found[1, 1, 2] == 1 and found[1, 1, 0] == 0  # empty texts are equal, and like no other
    assert found[1, 0, 3] == pytest.approx(found[0, 2, 0])


def test_ngrams_are_those_of_the_definition():
    found = ngrams(["7", "a  b\n", "aXbc", "", "\ud800x"])
    assert found.shape == (5, 2**BUCKET_BITS)
    # " 7 "; " a b " has 3 + 2 + 1; " aXbc " has 4 + 3 + 2; nothing; " \ud800x " has 2 + 1.
    assert found.sum(axis=1).tolist() == [1, 6, 9, 0, 3]
    assert np.array_equal(ngrams(["a b"])[0], found[1])
    assert np.flatnonzero(ngrams(["7"])[0]).tolist() == [1524]  # on every machine
    many = [f"{i} of many texts" for i in range(150)]
    assert np.array_equal(ngrams(many)[140], ngrams([many[140]])[0])
    assert ngrams([]).shape == (0, 2**BUCKET_BITS)


def test_long_texts_are_bounded():
    began = time.process_time()
    similarities([["abc " * 500_000, "x" * 2_000_000, ONE]])
    assert time.process_time() - began < 30


def test_every_text_is_embedded_once():
    asked: list[str] = []

    def embed(texts: Any) -> NDArray[np.float32]:
        asked.extend(texts)
        return np.array([[len(t), 1.0] for t in texts], np.float32)

    found = similarities([["a", "bb", "a"], ["bb", "a", "cccc"]], embed)
    assert asked == ["a", "bb", "cccc"]
    assert found[0, 0, 1] == pytest.approx(3 / np.sqrt(10))
    assert found[0, 0, 2] == 1


def test_vectors_that_are_not_finite_say_so():
    found = similarities([["a", "b"]], lambda texts: np.array([[1, 1], [np.nan, 1]], np.float32))
    assert found[0, 0, 0] == 1
    assert np.isnan(found[0, 0, 1]) and np.isnan(found[0, 1, 1])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def test_an_encoder_from_a_folder(encoder: Path):
    """Against one text at a time without padding; long texts are cut."""
    embedder = load_embedder(encoder, "cpu")
    texts = ["3+0-6+0>", "3", "", "1*2>" * 30, "7+0>\\boxed{7}", *(f"{n}+{n}=" for n in range(60))]
    found = embedder(texts)
    assert found.shape == (65, 16) and found.dtype == np.float32
    assert not found[2].any()
    for place in (0, 1, 3, 4, 64):
        ids = torch.tensor([embedder.tokenizer(texts[place])["input_ids"][:40]])
        with torch.no_grad():
            hidden = embedder.model(input_ids=ids).last_hidden_state[0]
        np.testing.assert_allclose(found[place], hidden.mean(0).numpy(), atol=1e-5)
    cosines = similarities([texts[:4]], embedder)
    assert cosines[0, 0, 2] == 0 and -1 <= cosines[0, 0, 1] < 1


def test_the_setting_similarity_model_names_the_encoder(encoder: Path):
    rule, texts = make_rule("evol_rl"), ["3+0-6+0>", "3", "7+0>"]
    config = TrainConfig(
        rule="evol_rl", n_votes=3, n_samples=2, device="cpu", similarity_model=str(encoder)
    )
    unused: Any = None
    votes: Any = SimpleNamespace(texts=[texts])
    observed = Observer(rule, config, unused, unused).observe(votes)["similarity"]
    expected = similarities([texts[:2]], load_embedder(encoder, "cpu"))
    np.testing.assert_array_equal(observed, expected)
    assert observed[0, 0, 1] != similarities([texts[:2]])[0, 0, 1]


@pytest.mark.parametrize("what", ["nothing", "no config", "remote code", "no weights"])
def test_folders_that_hold_no_encoder(what: str, encoder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    if what != "nothing":
        folder.mkdir()
    if what == "remote code":
        (folder / "config.json").write_text(
            '{"model_type": "own", "auto_map": {"AutoModel": "code.Own"}}'
        )
        (folder / "code.py").write_text("raise SystemExit('ran')")
    if what == "no weights":
        (folder / "config.json").write_text((encoder / "config.json").read_text())
    with pytest.raises(UserError) as error:
        load_embedder(folder, "cpu")
    assert str(error.value).startswith(f"embedder {folder}: ")
    assert "\n" not in str(error.value)


def test_the_tiny_checkpoint_itself_may_embed():
    found = load_embedder(CHECKPOINT, "cpu")(["3+0", "3*9"])
    assert found.shape[0] == 2 and np.isfinite(found).all()
