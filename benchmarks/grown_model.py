"""A tiny checkpoint with more layers and a greater width, which says what the small one says.

A model of random weights answers nothing, so nobody would win a vote and no update would be made.
Here all that is new holds zeros: the small model's numbers pass through a large one's work.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.errors import UserError
from real.model.policy import Policy, load_policy
from real.tiny.arithmetic import RESPONSE_TOKENS


def grown_policy(folder: str | Path, layers: int, width: int, tokens: int) -> Policy:
    """A tiny checkpoint's policy in a larger model, on the CPU.

    Args:
        folder: of the checkpoint.
        layers: of the model; the new ones change nothing.
        width: of its hidden states.
        tokens: of a response. Above those of the tiny task no token ends a response: the model
            goes on to the last one, and what it says then is different in every response.

    Raises:
        UserError: the model would be smaller, or the width not that of whole attention heads.
    """
    policy = load_policy(folder, "cpu")
    small = policy.model.config
    head = small.hidden_size // small.num_attention_heads
    for name, value, least in (
        ("layers", layers, small.num_hidden_layers),
        ("width", width, small.hidden_size),
    ):
        if value < least:
            raise UserError(f"{name} = {value}: the tiny model has {least}; give at least as many")
    if width % head:
        raise UserError(f"width = {width}: must be a multiple of {head}, the size of a head")
    growth = width / small.hidden_size
    config = Qwen2Config.from_dict(
        {
            **small.to_dict(),
            "hidden_size": width,
            "intermediate_size": int(growth * small.intermediate_size),
            "num_hidden_layers": layers,
            "layer_types": None,
            "num_attention_heads": width // head,
            "num_key_value_heads": width // head,
            # A question that quotes a response grows with it, and so does what follows.
            "max_position_embeddings": small.max_position_embeddings
            + 2 * max(0, tokens - RESPONSE_TOKENS),
            # Of the mean square over all places, of which the new ones hold 0.
            "rms_norm_eps": small.rms_norm_eps / growth,
        }
    )
    model = Qwen2ForCausalLM(config).float().eval()
    _fill(model, policy.model, 1 / math.sqrt(growth))
    ends = policy.eos_token_ids if tokens <= RESPONSE_TOKENS else ()
    return replace(policy, model=model, eos_token_ids=ends)


@torch.no_grad()
def _fill(model: Any, small: Any, norm_factor: float) -> None:
    """Put the small weights into the first rows and columns; all others are 0."""
    known = dict(small.named_parameters())
    for name, weights in model.named_parameters():
        weights.zero_()
        if name in known:
            own = known[name]
            corner = tuple(slice(0, size) for size in own.shape)
            weights[corner] = own * norm_factor if "norm" in name else own
