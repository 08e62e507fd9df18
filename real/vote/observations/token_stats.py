"""Entropy and self-certainty of responses by a forward pass of the trainer.

For an engine that does not tell them: a vLLM server gives the log-probs of sampled tokens alone.
The pass runs over all V responses without gradient: about a third of an update on as many rows, for
it has no backward pass. The transformers engine and vLLM in a process of this run tell both while
they sample, see `Sampling.stats`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from real.engines.rollouts import Prompts, Rollouts
from real.update.group import Group
from real.update.logprobs import Scorer, group_stats


def token_stats(
    scorer: Scorer,
    prompts: Prompts,
    rollouts: Rollouts,
    temperature: float,
    micro_tokens: int,
    share: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """Mean entropy and self-certainty of the tokens of every response.

    Equal responses to a prompt are computed once. Logits exist for a chunk of tokens at a time.

    Args:
        scorer: the model of the version that drew the rollouts.
        prompts: (P,) token ids of each prompt.
        rollouts: of these prompts, on the model's device.
        temperature: that of sampling.
        micro_tokens: most tokens of a pass, padding included.
        share: rank and number of ranks, which divide the passes and get all values.

    Returns:
        (P, V) float64 mean entropy and (P, V) float64 mean KL(uniform || next-token distribution),
        in nats; not finite where the model's logits are not.
    """
    groups, inverses = [], []
    for prompt, tokens_VT, lengths_V in zip(
        prompts, rollouts.tokens_PNT, rollouts.lengths_PN, strict=True
    ):
        rows, inverse = _distinct(tokens_VT, lengths_V)
        groups.append(_group(prompt, tokens_VT[rows], lengths_V[rows]))
        inverses.append(inverse)
    found = group_stats(scorer, groups, temperature, micro_tokens, share)
    pairs = zip(found, inverses, strict=True)
    entropy_PV, certainty_PV = torch.stack([values[:, rows] for values, rows in pairs], dim=1)
    return entropy_PV, certainty_PV - math.log(_vocabulary(scorer))


def _distinct(tokens_VT: Tensor, lengths_V: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the first of equal responses, and which of these every response is."""
    place_of: dict[tuple[int, ...], int] = {}
    first: list[int] = []
    inverse: list[int] = []
    pairs = zip(tokens_VT.tolist(), lengths_V.tolist(), strict=True)
    for place, (row, length) in enumerate(pairs):
        key = tuple(row[:length])
        if key not in place_of:
            place_of[key] = len(first)
            first.append(place)
        inverse.append(place_of[key])
    device = tokens_VT.device
    return torch.tensor(first, device=device), torch.tensor(inverse, device=device)


def _group(prompt: Sequence[int], tokens_KT: Tensor, lengths_K: Tensor) -> Group:
    """Responses to be scored; all their tokens count, whatever log-prob the engine gave them."""
    zeros_K = torch.zeros(len(lengths_K), device=tokens_KT.device)
    return Group(
        prompt_L=torch.tensor(prompt, dtype=torch.long, device=tokens_KT.device),
        tokens_KT=tokens_KT,
        old_KT=torch.zeros(tokens_KT.shape, device=tokens_KT.device),
        lengths_K=lengths_K,
        majority_K=zeros_K,
        minority_K=zeros_K,
    )


def _vocabulary(scorer: Scorer) -> int:
    """Logits a token."""
    linear = scorer.head.linear if scorer.head else scorer.model.get_output_embeddings()
    return linear.weight.shape[0]
