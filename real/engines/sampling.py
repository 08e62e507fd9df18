"""One token a row from next-token logits."""

from __future__ import annotations

from collections.abc import Callable

import torch


def draw(
    logits_BA: torch.Tensor,
    uniforms_B: torch.Tensor,
    temperature: float,
    top_p: float = 1.0,
    look: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits_BA: (B, A) next-token logits, A the vocabulary.
        uniforms_B: (B,) float32 in [0, 1), one a row.
        temperature: divides the logits, in float32.
        top_p: draw only from the smallest set of likeliest tokens with at least this mass.
        look: is shown the (B, A) log-probs at that temperature, and their exponentials, before the
            cut at `top_p`.

    Returns:
        (B,) token ids and (B,) float32 log-probs before the cut at `top_p`.
    """
    logprobs_BA = torch.log_softmax(logits_BA.float() / temperature, dim=-1)
    probs_BA = logprobs_BA.exp()
    if look is not None:
        look(logprobs_BA, probs_BA)
    if top_p < 1:
        sorted_BA, order_BA = probs_BA.sort(dim=-1, descending=True)
        above_BA = sorted_BA.cumsum(-1) - sorted_BA  # mass of the likelier tokens
        probs_BA = probs_BA.scatter(-1, order_BA, sorted_BA.masked_fill(above_BA >= top_p, 0.0))
    cumulative_BA = probs_BA.cumsum(-1)
    # Scaled by the last sum, not by 1: then u < 1 lands on a token of positive probability.
    targets_B1 = uniforms_B[:, None] * cumulative_BA[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BA, targets_B1, right=True)
    tokens_B1 = tokens_B1.clamp_(max=logits_BA.shape[-1] - 1)  # NaN logits sort past the end
    return tokens_B1[:, 0], logprobs_BA.gather(-1, tokens_B1)[:, 0]
