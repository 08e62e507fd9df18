"""Models that vLLM can run on a CPU."""

import torch
from small_models import causal, decoder_sizes


def make_model(tied=True):
    """Head width 32, which vLLM's attention on a CPU can do; long enough for many cache blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    return causal("Qwen2", **decoder_sizes(32, **sizes, **ends), tie_word_embeddings=tied)


def change(model):
    """An update that no log-prob survives."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
