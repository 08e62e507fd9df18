"""Log-probs of chosen tokens, with gradient, and statistics of the distributions they came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from real.update.head import CHUNK_ELEMENTS, Head, chunked


class TokenScores(NamedTuple):
    """Log-probs and statistics of n tokens at their sampling temperature."""

    logprobs_n: Tensor
    """(n,) log-probs in nats, at least single precision; the only ones with a gradient."""
    entropy_n: Tensor | None = None
    """(n,) entropy of the next-token distribution in nats."""
    self_certainty_n: Tensor | None = None
    """(n,) minus the mean log-prob over the vocabulary, `logsumexp(z) - mean(z)`: how far the
    distribution is from uniform, `KL(uniform || p) + log(vocabulary)`."""


def head_scores(
    head: Head,
    hidden_nH: Tensor,
    targets_n: Tensor,
    temperature: float,
    stats: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenScores:
    """Score tokens from the hidden states before them, with gradient.

    Args:
        head: the model's.
        hidden_nH: (n, H) last hidden states.
        targets_n: (n,) ids of the tokens to score.
        temperature: divides the logits.
        stats: whether to give entropy and self-certainty as well.
        chunk_elements: most logits at once.
    """
    of_logits = _Scores(temperature, stats)
    return TokenScores(*chunked(head, hidden_nH, targets_n, of_logits, chunk_elements))


def score_logits(
    logits_nV: Tensor, targets_n: Tensor, temperature: float, stats: bool = False
) -> TokenScores:
    """Scores from logits, which this may overwrite.

    Args:
        logits_nV: (n, V) before temperature; computed with, at least, in single precision.
        targets_n: (n,) token ids.
        temperature: divides the logits.
        stats: whether to give entropy and self-certainty as well.
    """
    logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
    # In place: the projection that made the logits does not need them for its gradient.
    logits_nV = logits_nV.div_(temperature)
    chosen_n = logits_nV.gather(-1, targets_n[:, None]).squeeze(-1)
    total_n = logits_nV.logsumexp(-1)
    logprobs_n = chosen_n - total_n
    if not stats:
        return TokenScores(logprobs_n)
    with torch.no_grad():
        logp_nV = logits_nV.detach() - total_n.detach()[:, None]
        p_nV = logp_nV.exp()
        # Where a token is impossible its term is 0, not NaN.
        entropy_n = -torch.where(p_nV > 0, p_nV * logp_nV, 0).sum(-1)
        return TokenScores(logprobs_n, entropy_n, -logp_nV.mean(-1))


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of `score_logits`."""

    temperature: float
    stats: bool

    def __call__(self, logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, ...]:
        scores = score_logits(logits_nV, targets_n, self.temperature, self.stats)
        return tuple(values for values in scores if values is not None)

    def grad_logits(self, logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor) -> Tensor:
        """`g * ([v = target] - p_v) / temperature`."""
        wide = torch.promote_types(logits_nV.dtype, torch.float32)
        z_nV = logits_nV.to(wide).div_(self.temperature)
        p_nV = z_nV.sub_(z_nV.logsumexp(-1, keepdim=True)).exp_()
        scaled_n1 = (grad_n / self.temperature)[:, None]
        grad_nV = p_nV.mul_(-scaled_n1)
        return grad_nV.scatter_add_(1, targets_n[:, None], scaled_n1.to(grad_nV.dtype))

    def scaled(self, factor: float) -> _Scores:
        return replace(self, temperature=self.temperature / factor)
