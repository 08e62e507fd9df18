"""The real vLLM on a CPU. Without it these tests are skipped, but in CI they fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from real.settings.presets import installed


@pytest.fixture(scope="session", autouse=True)
def needs_vllm() -> None:
    if installed("vllm"):
        return
    if os.environ.get("CI"):
        pytest.fail("vLLM is not installed, and CI must test with it: make test-vllm")
    pytest.skip("vLLM is not installed: make test-vllm")


def make_model(tied: bool = True) -> Any:
    """Head width 32, which vLLM's attention on a CPU can do; long enough for many cache blocks."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            initializer_range=0.3,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def change(model: Any) -> None:
    """An update that no log-prob survives."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)


def logprob_gap(model: Any, prompts: Any, rollouts: Any, temperature: float) -> float:
    """Largest difference from log-probs by one forward pass without a cache."""
    largest = 0.0
    for place, prompt in enumerate(prompts):
        for n, length in enumerate(rollouts.lengths_PN[place].tolist()):
            response = rollouts.tokens_PNT[place, n, :length].tolist()
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
            expected = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
            expected = expected[range(length), response]
            found = rollouts.logprobs_PNT[place, n, :length]
            largest = max(largest, float((found - expected).abs().max()))
    return largest


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions of this file: test modules cannot import it."""

    class Tools:
        make_model = staticmethod(make_model)
        change = staticmethod(change)
        logprob_gap = staticmethod(logprob_gap)

    return Tools


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def untied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("untied")
    make_model(tied=False).save_pretrained(path)
    return path
