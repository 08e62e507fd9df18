"""Entropy and self-certainty of the next-token distributions, averaged over each response.

The distributions exist when a token is drawn, one position at a time. Measuring them there costs no
forward pass and no tensor over all tokens and the vocabulary. vLLM gives the log-probs of sampled
tokens alone; there a pass of the trainer computes them, see `real.vote.observe`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from guard_core.rules.rule import Need, Rule


def needs_stats(rule: Rule) -> bool:
    """Return whether the rule reads token entropies or certainties, which engines can give."""
    return bool(rule.needs & {Need.ENTROPY, Need.CERTAINTY})


def entropy_and_certainty(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and self-certainty of next-token distributions.

    Args:
        logprobs_BA: (B, A) log-probs in nats, A the vocabulary.
        probs_BA: (B, A) their exponentials.

    Returns:
        (B,) entropies, and (B,) `KL(uniform || p) = -log A - mean log p` (Zhao et al., "Learning to
        Reason without External Rewards"), both in nats. A token that is impossible adds nothing to
        the first and makes the second infinite.
    """
    expected_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
    return -expected_B, -math.log(logprobs_BA.shape[-1]) - uniform_B


class RunningStats:
    """Running sums of the statistics of R responses.

    Each token costs few operations: a step of a small model takes no longer than a few of them.
    """

    def __init__(self, rows: int) -> None:
        """Start without tokens of `rows` responses."""
        self._rows, self._size = rows, 1
        self._parts: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []

    def add(self, rows_B: Tensor, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Add the distributions of the next token of rows B, ended ones included.

        Args:
            rows_B: (B,) row numbers; the same object as long as no row leaves.
            logprobs_BA: (B, A) log-probs.
            probs_BA: (B, A) their exponentials.
        """
        if not self._parts or self._parts[-1][0] is not rows_B:
            self._parts.append((rows_B, [], []))
        expected_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
        self._parts[-1][1].append(expected_B)
        self._parts[-1][2].append(uniform_B)
        self._size = logprobs_BA.shape[-1]

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return (R,) mean entropies and (R,) mean self-certainties of the responses' tokens.

        Args:
            lengths_R: (R,) lengths of the responses; later tokens do not count.

        Returns:
            (R,) float64 and (R,) float64, in nats.
        """
        device, start = lengths_R.device, 0
        sums_2R = torch.zeros((2, self._rows), dtype=torch.float64, device=device)
        for rows_B, expected, uniform in self._parts:
            step_N1 = torch.arange(start, start + len(expected), device=device)[:, None]
            values_2NB = torch.stack([*expected, *uniform]).unflatten(0, (2, -1))
            values_2NB = torch.where(step_N1 < lengths_R[rows_B], values_2NB, 0.0)
            sums_2R[:, rows_B] += values_2NB.sum(1, dtype=torch.float64)
            start += len(expected)
        entropy_R, certainty_R = -sums_2R / lengths_R
        return entropy_R, certainty_R - math.log(self._size)


def _mean_logs(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B,) mean log-probs under the distribution itself and under the uniform one."""
    # Raised to a finite number, an impossible token's term is 0 and not NaN.
    finite_BA = logprobs_BA.clamp(min=torch.finfo(logprobs_BA.dtype).min)
    return torch.linalg.vecdot(probs_BA, finite_BA), logprobs_BA.mean(-1)
