"""Models that vLLM can run on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from small_models import decoder_sizes
from transformers import Qwen2Config, Qwen2ForCausalLM


def make_model(tied: bool = True) -> Any:
    """Head width 32, which vLLM's attention on a CPU can do; long enough for many cache blocks."""
    torch.manual_seed(0)
    sizes = decoder_sizes(
        32, hidden_size=64, intermediate_size=96, max_position_embeddings=256, pad_token_id=0
    )
    config = Qwen2Config(**sizes, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None)
    return Qwen2ForCausalLM(config).eval()


def change(model: Any) -> None:
    """An update that no log-prob survives."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
