"""Small random language models with a tokenizer of characters, in folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Split
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

BOXES = [f"\\boxed{{{answer}}}" for answer in range(4)]


SPECIAL = ["<unk>", "<pad>", "<eos>"]


def make_tokenizer(chat_template: str | None = None, **options: Any) -> PreTrainedTokenizerFast:
    """One printable character one token, and some boxed answers, so random text has answers."""
    tokens = [*SPECIAL, *BOXES, *map(chr, range(32, 127)), "\n"]
    backend = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=chat_template,
        **options,
    )


def byte_level(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of these tokens, spelled as byte-level vocabularies do."""
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    return with_ends(backend)


def with_ends(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """With <pad> and <eos>, and no blank of a text taken away."""
    backend.add_special_tokens([AddedToken("<pad>"), AddedToken("<eos>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def decoder_sizes(vocabulary: int, **changes: Any) -> dict[str, Any]:
    """Sizes of a small decoder, for the configs of Llama, Qwen and their like."""
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    return sizes | changes


def llama(vocabulary: int, positions: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=positions,
        eos_token_id=2,
        bos_token_id=None,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config)


def gpt2(vocabulary: int, positions: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=positions,
        eos_token_id=2,
        bos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def save_model(
    folder: Path,
    make: Callable[[int, int], Any] = llama,
    positions: int = 2048,
    spare: int = 0,
    chat_template: str | None = None,
    extra: Sequence[str] = (),
) -> Path:
    """Save a model and its tokenizer; the model has `spare` more embeddings than tokens.

    `extra` are further special tokens.
    """
    tokenizer = make_tokenizer(chat_template, extra_special_tokens=[*extra])
    torch.manual_seed(0)
    make(len(tokenizer) + spare, positions).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
