"""How sure the model is at each sampled token, summed up while responses are drawn.

The next-token distributions exist anyway when a token is drawn, one position at a time; looking at
them there costs no forward pass, and no tensor over all tokens and the vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spread(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and self-certainty of next-token distributions.

    Args:
        logprobs_BA: (B, A) log-probs in nats, A the vocabulary.
        probs_BA: (B, A) their exponentials.

    Returns:
        (B,) entropies, and (B,) `KL(uniform || p) = -log A - mean log p` (Zhao et al., "Learning to
        Reason without External Rewards"), both in nats. A token that is impossible adds nothing to
        the first and makes the second infinite.
    """
    # Raised to a finite number, an impossible token's term is 0 and not NaN.
    finite_BA = logprobs_BA.clamp(min=torch.finfo(logprobs_BA.dtype).min)
    entropy_B = -torch.linalg.vecdot(probs_BA, finite_BA)
    return entropy_B, -math.log(logprobs_BA.shape[-1]) - logprobs_BA.mean(-1)


class SpreadSums:
    """Sums over the tokens of R responses, in double precision: order and batch do not matter."""

    def __init__(self, rows: int, device: torch.device) -> None:
        """Nothing seen yet."""
        self.sums_2R = torch.zeros((2, rows), dtype=torch.float64, device=device)

    def add(self, rows_B: Tensor, running_B: Tensor, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Take in one token's distributions of those rows B that have not ended."""
        values_2B = torch.stack(spread(logprobs_BA, probs_BA))
        # Rows differ, so that no two are added to the same sum and the order is none.
        self.sums_2R.index_add_(1, rows_B, torch.where(running_B, values_2B, 0.0).double())

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """(R,) mean entropy and (R,) mean self-certainty of the responses' tokens."""
        entropy_R, certainty_R = self.sums_2R / lengths_R
        return entropy_R, certainty_R
