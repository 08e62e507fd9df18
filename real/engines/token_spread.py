"""How sure the model is at each sampled token, noted while responses are drawn.

The next-token distributions exist anyway when a token is drawn, one position at a time; looking at
them there costs no forward pass, and no tensor over all tokens and the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

_CACHED = 2**18
"""Logits of a chunk on a CPU."""


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
    own_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
    return -own_B, -math.log(logprobs_BA.shape[-1]) - uniform_B


def spread_of_logits(logits_BA: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy and self-certainty of next-token distributions by their logits.

    On a CPU rows are taken in chunks that stay in its cache, which is three to six times faster
    than all at once for a large vocabulary. On a GPU, where memory bounds the time, one compiled
    kernel reads the logits twice and writes no (B, A) tensor; it has not been run on one.

    Args:
        logits_BA: (B, A) logits; left as they are.
        temperature: divides them.

    Returns:
        (2, B) float32; see `spread`.
    """
    if logits_BA.is_cuda:
        return fused_spread(logits_BA, temperature)
    rows = max(1, _CACHED // logits_BA.shape[-1])
    return torch.cat([_chunk_spread(part, temperature) for part in logits_BA.split(rows)], dim=1)


def _chunk_spread(logits_BA: Tensor, temperature: float) -> Tensor:
    logits_BA = logits_BA.float() if temperature == 1 else logits_BA.float() / temperature
    # Softmax is faster than the exponential of its logarithm.
    return torch.stack(spread(logits_BA.log_softmax(-1), logits_BA.softmax(-1)))


def fused_spread(logits_BA: Tensor, temperature: float) -> Tensor:
    """`spread_of_logits` by a compiled kernel; compiling takes about ten seconds, once."""
    entropy_B, mean_B = _compiled()(logits_BA, temperature)
    return torch.stack([entropy_B, -math.log(logits_BA.shape[-1]) - mean_B])


@cache
def _compiled() -> Callable[[Tensor, float], tuple[Tensor, Tensor]]:
    return torch.compile(_entropy_and_mean, dynamic=True)


def _entropy_and_mean(logits_BA: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(B,) entropies and (B,) mean log-probs."""
    # A sum where `spread` has a matrix product, which would not be fused.
    logprobs_BA = torch.log_softmax(logits_BA.float() / temperature, -1)
    finite_BA = logprobs_BA.clamp(min=torch.finfo(torch.float32).min)
    return -(logprobs_BA.exp() * finite_BA).sum(-1), logprobs_BA.mean(-1)


class Spreads:
    """How spread out every token's distribution was, of R responses.

    Little is done a token, since a small model's step is shorter than a few operations more.
    """

    def __init__(self, rows: int) -> None:
        """Nothing seen yet of `rows` responses."""
        self._rows, self._size = rows, 1
        self._parts: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []

    def add(self, rows_B: Tensor, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Take in the distributions of rows B's next token, of those that have ended too.

        Args:
            rows_B: the same object as long as nobody leaves.
            logprobs_BA: (B, A) log-probs.
            probs_BA: (B, A) their exponentials.
        """
        if not self._parts or self._parts[-1][0] is not rows_B:
            self._parts.append((rows_B, [], []))
        own_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
        self._parts[-1][1].append(own_B)
        self._parts[-1][2].append(uniform_B)
        self._size = logprobs_BA.shape[-1]

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """(R,) mean entropy and (R,) mean self-certainty, see `spread`, of the responses' tokens.

        In double precision.

        Args:
            lengths_R: of the responses; what was seen of them later does not count.
        """
        device, start = lengths_R.device, 0
        sums_2R = torch.zeros((2, self._rows), dtype=torch.float64, device=device)
        for rows_B, own, uniform in self._parts:
            step_N1 = torch.arange(start, start + len(own), device=device)[:, None]
            values_2NB = torch.stack([*own, *uniform]).unflatten(0, (2, -1))
            values_2NB = torch.where(step_N1 < lengths_R[rows_B], values_2NB, 0.0)
            sums_2R[:, rows_B] += values_2NB.sum(1, dtype=torch.float64)
            start += len(own)
        entropy_R, certainty_R = -sums_2R / lengths_R
        return entropy_R, certainty_R - math.log(self._size)


def _mean_logs(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) mean log-probs under the law itself and under the uniform one."""
    # Raised to a finite number, an impossible token's term is 0 and not NaN.
    finite_BA = logprobs_BA.clamp(min=torch.finfo(logprobs_BA.dtype).min)
    return torch.linalg.vecdot(probs_BA, finite_BA), logprobs_BA.mean(-1)
