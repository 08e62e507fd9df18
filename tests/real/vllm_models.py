"""Models that vLLM can run on a CPU."""

import torch
from small_models import causal, decoder_sizes


def make_model(tied=True, kind="Qwen2", **more):
    """Head width 32, which vLLM's attention on a CPU can do; long enough for many cache blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    return causal(kind, **decoder_sizes(32, **sizes | ends | more), tie_word_embeddings=tied)


EXPERTS = {"kind": "Mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "tied": False}
EXPERTS |= {"intermediate_size": 128}  # in two parts that vLLM need not pad


def change(model):
    """An update that no log-prob survives."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
