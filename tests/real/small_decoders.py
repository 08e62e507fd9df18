"""Decoders of four kinds with a vocabulary of 13, and prompts for them."""

from __future__ import annotations

from typing import Any

import torch
from small_models import decoder_sizes
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [3, 2, 1]]
SHARED = {"bos_token_id": None, "eos_token_id": None, "vocab_size": VOCABULARY}
WIDER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
OWN = {
    "qwen2": {"tie_word_embeddings": True},
    "llama": {},
    "mistral": {"sliding_window": 4},  # keys older than the window leave the cache
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3},
}


def make(kind: str) -> Any:
    torch.manual_seed(0)
    shape: Any = decoder_sizes(VOCABULARY, num_key_value_heads=2, pad_token_id=0, **WIDER)
    shape = (shape if kind != "gpt2" else {}) | SHARED | OWN[kind]
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
