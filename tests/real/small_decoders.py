"""Decoders of four kinds with a vocabulary of 13, and prompts for them."""

from __future__ import annotations

from typing import Any

import torch
from small_models import decoder_sizes
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [3, 2, 1]]


def shape(**extra: Any) -> dict[str, Any]:
    wider = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return decoder_sizes(VOCABULARY, num_key_value_heads=2, **wider, **tokens, **extra)


def make(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape(tie_word_embeddings=True)))
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape()))
    if kind == "mistral":  # keys older than the window leave the cache
        return MistralForCausalLM(MistralConfig(**shape(sliding_window=4)))
    return GPT2LMHeadModel(  # learned positions
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64,
            initializer_range=0.3, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
