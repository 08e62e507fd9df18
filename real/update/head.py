"""From hidden states to log-probs of chosen tokens, a chunk of tokens at a time.

The logits of all tokens, [tokens, vocabulary] in single precision, are the largest tensor of a
training step by far: 2 GiB at 32 rows of 512 tokens and 32,768 words, and the backward pass wants
two or three of that size. Here they exist for one chunk of tokens only, and are computed again for
the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**25
"""Logits that exist at once, 128 MiB of them in single precision. Larger chunks are no faster:
with a vocabulary of 150,000 these are still 220 tokens, enough to keep a GPU's matrix units busy.
"""


class TokenScores(NamedTuple):
    """Log-probs and statistics of n tokens at their sampling temperature."""

    logprobs_n: Tensor
    """(n,) log-probs in nats, at least single precision; the only ones with a gradient."""
    entropy_n: Tensor | None = None
    """(n,) entropy of the next-token distribution in nats."""
    self_certainty_n: Tensor | None = None
    """(n,) minus the mean log-prob over the vocabulary, `logsumexp(z) - mean(z)`: how far the
    distribution is from uniform, `KL(uniform || p) + log(vocabulary)`."""


@dataclass(frozen=True, slots=True)
class Head:
    """Map from a model's hidden states to its logits: `cap(linear(hidden) * factor)`."""

    linear: Any
    """The output embedding, a module; the loss's gradient reaches its weight."""
    factor: float = 1.0
    """On the logits, as Cohere's and Granite's models have it."""
    softcap: float | None = None
    """Logits are bent to `softcap * tanh(logits / softcap)`, as in Gemma 2."""

    @property
    def plain(self) -> bool:
        """Nothing but a matrix, so that the gradient is known in closed form."""
        return type(self.linear) is torch.nn.Linear and self.softcap is None

    def logits(self, hidden_nH: Tensor) -> Tensor:
        """(n, vocabulary) logits in the model's own precision."""
        logits = self.linear(hidden_nH)
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


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
    n_tokens, vocabulary = targets_n.shape[0], head.linear.weight.shape[0]
    size = max(1, chunk_elements // vocabulary)
    if n_tokens <= size:
        # Few logits may as well be kept for the backward pass.
        return score_logits(head.logits(hidden_nH), targets_n, temperature, stats)
    if head.plain:
        linear, scale = head.linear, temperature / head.factor
        scores = _ChunkedScores.apply(
            hidden_nH, linear.weight, linear.bias, targets_n, scale, size, stats
        )
        return TokenScores(*scores) if stats else TokenScores(scores[0])
    score_chunk = partial(_own_head, head, temperature, stats)
    return _joined([_recomputed(score_chunk, h, t) for h, t in _chunks(size, hidden_nH, targets_n)])


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


class _ChunkedScores(torch.autograd.Function):
    """Scores under a plain linear head; its logits are made twice and never all at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_nH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_n: Tensor,
        temperature: float,
        size: int,
        stats: bool,
    ) -> tuple[Tensor, ...]:
        chunks = [
            score_logits(
                torch.nn.functional.linear(hidden, weight_VH, bias_V), targets, temperature, stats
            )
            for hidden, targets in _chunks(size, hidden_nH, targets_n)
        ]
        ctx.save_for_backward(hidden_nH, weight_VH, bias_V, targets_n)
        ctx.temperature, ctx.size = temperature, size
        whole = tuple(part for part in _joined(chunks) if part is not None)
        ctx.mark_non_differentiable(*whole[1:])
        return whole

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_nH, weight_VH, bias_V, targets_n = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_nH) if needs_hidden else None
        # Summed over chunks in single precision, whatever that of the weights.
        wide = torch.promote_types(weight_VH.dtype, torch.float32)
        grad_weight = torch.zeros_like(weight_VH, dtype=wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=wide) if needs_bias else None
        starts = range(0, len(targets_n), ctx.size)
        for start in starts:
            part = slice(start, start + ctx.size)
            hidden = hidden_nH[part]
            grad_logits = _grad_logits(
                torch.nn.functional.linear(hidden, weight_VH, bias_V),
                targets_n[part],
                grads[0][part],
                ctx.temperature,
            )
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            narrow = grad_logits.to(weight_VH.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = narrow @ weight_VH
            if grad_weight is not None:
                _add_product(grad_weight, narrow.T, hidden)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            *(None,) * 4,
        )


def _grad_logits(
    logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor, temperature: float
) -> Tensor:
    """(n, V) gradient of the raw logits: `g * ([v = target] - p_v) / temperature`."""
    z_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32)).div_(temperature)
    p_nV = z_nV.sub_(z_nV.logsumexp(-1, keepdim=True)).exp_()
    scaled_n1 = (grad_n / temperature)[:, None]
    grad_nV = p_nV.mul_(-scaled_n1)
    return grad_nV.scatter_add_(1, targets_n[:, None], scaled_n1.to(grad_nV.dtype))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _own_head(
    head: Head, temperature: float, stats: bool, hidden_nH: Tensor, targets_n: Tensor
) -> TokenScores:
    return score_logits(head.logits(hidden_nH), targets_n, temperature, stats)


def _recomputed(
    score: Callable[[Tensor, Tensor], TokenScores], hidden_nH: Tensor, targets_n: Tensor
) -> TokenScores:
    scores: Any = checkpoint(
        score, hidden_nH, targets_n, use_reentrant=False, preserve_rng_state=False
    )
    return scores


def _chunks(size: int, *tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def _joined(parts: list[TokenScores]) -> TokenScores:
    def whole(columns: list[Tensor | None]) -> Tensor | None:
        filled = [column for column in columns if column is not None]
        return torch.cat(filled) if filled else None

    return TokenScores(
        torch.cat([part.logprobs_n for part in parts]),
        whole([part.entropy_n for part in parts]),
        whole([part.self_certainty_n for part in parts]),
    )
