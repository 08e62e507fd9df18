"""Log-probs of steps, however a tokenizer spells its blank lines."""

import time

import numpy as np
import pytest
import torch
from small_models import byte_level, with_ends
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Metaspace, Sequence, Strip
from tokenizers.models import BPE

from real.engines.rollouts import Rollouts
from real.vote.observe import step_logprobs, steps_of, token_texts
from real.vote.similarity import BUCKET_BITS, ngrams, similarities

# Ċ is a line feed and Ġ a space in byte-level vocabularies; Ã and © are the two bytes of é.
BYTES = ["<pad>", "<eos>", "a", "b", ".", "Ċ", "ĊĊ", ".ĊĊ", "Ġ", "Ã", "©", "aĊ", "ĊaĊĊb"]
PIECES = ["<pad>", "<eos>", "a", "b", ".", "<0x0A>", "▁a", "▁b", "▁", "<0xC3>", "<0xA9>"]


def pieces():
    """As Llama 2 has it: spaces in front of words, line feeds as bytes."""
    vocab = {t: i for i, t in enumerate(PIECES)}
    backend = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = Sequence([ByteFallback(), Metaspace(), Fuse(), Strip(" ", 1, 0)])
    return with_ends(backend)


def rollouts_of(rows, logprobs):
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    values = torch.tensor([row + [-99.0] * (width - len(row)) for row in logprobs])
    lengths = torch.tensor([[len(row) for row in rows]])
    return Rollouts(tokens[None], values[None], lengths, lengths > 0, 0)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["a", ".ĊĊ", "b", "b"], [0, 0, 1, 1]),
        (["a", "Ċ", "Ċ", "b"], [0, 0, 0, 1]),
        (["a", "ĊĊ", "b", "ĊĊ", "a"], [0, 0, 1, 1, 2]),
        (["a", "Ċ", "b"], [0, 0, 0]),
        (["aĊ", "Ġ", "Ċ", "b"], [0, 0, 0, 1]),  # a line of blanks alone is blank
        (["a", "ĊĊ", "Ċ", "Ċ", "Ċ", "b"], [0, 0, 0, 0, 0, 1]),  # one gap, however wide
        (["ĊĊ", "a", "b"], [0, 0, 0]),
        (["a", "b", "ĊĊ", "<eos>"], [0, 0, 0, 0]),
        (["a", "ĊĊ", "Ã", "©", "Ċ", "Ċ", "b"], [0, 0, 1, 1, 1, 1, 2]),
        (["b", "Ċ", "ĊaĊĊb", "b"], [0, 0, 0, 2]),  # no token begins in the step between
        (["ĊĊ", "<eos>"], [0, 0]),
        # Line feeds are bytes.
        (["▁a", "b", "<0x0A>", "<0x0A>", "▁b"], [0, 0, 0, 0, 1]),
        (["▁a", "<0x0A>", "▁", "<0x0A>", "<0xC3>", "<0xA9>"], [0, 0, 0, 0, 1, 1]),
        (["<0x0A>", "<0x0A>", "a", "<0x0A>", "b"], [0, 0, 0, 0, 0]),
    ],
)
def test_steps_of_tokens(tokens, expected):
    tokenizer, names = (pieces(), PIECES) if "<0x0A>" in tokens else (byte_level(BYTES), BYTES)
    ids = [names.index(token) for token in tokens]
    text_of = token_texts(tokenizer, set(ids))
    assert steps_of([text_of[i] for i in ids]).tolist() == expected


def test_mean_over_steps_of_the_mean_over_tokens():
    rows = [[2, 3, 7, 2, 3], [2, 3, 2, 3, 1], [2, 6, 3], [2, 7, 3], [3, 3]]
    nan = float("nan")
    logprobs = [
        [-1.0, -2.0, -3.0, -4.0, -8.0],  # (2 + 6) / 2
        [-1.0, -2.0, -3.0, -4.0, -5.0],  # one step
        [-1.0, nan, -4.0],  # (1 + 4) / 2
        [nan, -float("inf"), -4.0],  # the first step has nothing
        [nan, nan],
    ]
    found = step_logprobs(rollouts_of(rows, logprobs), byte_level(BYTES))
    assert found.shape == (1, 5) and found.dtype == np.float64
    np.testing.assert_allclose(found[0], [-4.0, -3.0, -2.5, -4.0, nan])


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


def test_long_texts_are_bounded():
    began = time.process_time()
    similarities([["abc " * 500_000, "x" * 2_000_000, ONE]])
    assert time.process_time() - began < 30
