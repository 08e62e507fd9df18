"""From hidden states to numbers about tokens, a chunk of tokens at a time.

The logits of all tokens, [tokens, vocabulary] in single precision, are the largest tensor of a
training step by far: 2 GiB at 32 rows of 512 tokens and 32,768 words, and the backward pass wants
two or three of that size. Here they exist for one chunk of tokens only, and are computed again for
the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from real.model.policy import WideHead, add_product, wide_product

CHUNK_ELEMENTS = 2**25
"""Logits that exist at once, 128 MiB of them in single precision. Larger chunks are no faster:
with a vocabulary of 150,000 these are still 220 tokens, enough for a CPU's matrix units.
"""
GPU_CHUNK_ELEMENTS = 2**28
"""On a GPU, 1 GiB: fewer tokens at once would read the head's weights too often."""


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
        return type(self.linear) in (torch.nn.Linear, WideHead) and self.softcap is None

    def logits(self, hidden_nH: Tensor) -> Tensor:
        """(n, vocabulary) logits, in single precision with a `WideHead`, else in the model's."""
        logits = self.linear(hidden_nH)
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


class OfLogits(Protocol):
    """Numbers of n tokens as a function of their logits, with its gradient in closed form."""

    def __call__(self, logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, ...]:
        """(n,) numbers of several kinds, the first with gradient; may overwrite the logits."""
        ...

    def grad_logits(self, logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor) -> Tensor:
        """(n, V) gradient of the logits, from (n,) that of the first number."""
        ...

    def scaled(self, factor: float) -> OfLogits:
        """The same of logits that were not yet multiplied by `factor`."""
        ...


def chunked(
    head: Head,
    hidden_nH: Tensor,
    targets_n: Tensor,
    of_logits: OfLogits,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, ...]:
    """Return numbers of tokens from the hidden states before them, the first with gradient.

    Args:
        hidden_nH: (n, H) last hidden states.
        targets_n: (n,) ids of the tokens.
    """
    size = max(1, chunk_elements // head.linear.weight.shape[0])
    if len(hidden_nH) <= size:
        # Few logits may as well be kept for the backward pass.
        return of_logits(head.logits(hidden_nH), targets_n)
    if head.plain:
        weight, bias = head.linear.weight, head.linear.bias
        plain = of_logits.scaled(head.factor)
        wide = isinstance(head.linear, WideHead) and torch.finfo(weight.dtype).bits < 32
        product = wide_product if wide else linear
        return _Chunked.apply(hidden_nH, weight, bias, targets_n, plain, size, product)  # pyright: ignore[reportReturnType]

    def of_chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return of_logits(head.logits(hidden), targets)

    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    pairs = zip(hidden_nH.split(size), targets_n.split(size), strict=True)
    return _joined([checkpoint(of_chunk, *pair, **options) for pair in pairs])  # pyright: ignore[reportArgumentType]


class _Chunked(torch.autograd.Function):
    """Numbers under a plain linear head; its logits are made twice and never all at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_nH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_n: Tensor,
        of_logits: OfLogits,
        size: int,
        product: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden_nH, weight_VH, bias_V, targets_n)
        ctx.of_logits, ctx.size, ctx.product = of_logits, size, product
        pairs = zip(hidden_nH.split(size), targets_n.split(size), strict=True)
        whole = _joined([of_logits(product(h, weight_VH, bias_V), targets) for h, targets in pairs])
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
        for start in range(0, len(targets_n), ctx.size):
            part = slice(start, start + ctx.size)
            hidden = hidden_nH[part]
            logits = ctx.product(hidden, weight_VH, bias_V)
            grad_logits = ctx.of_logits.grad_logits(logits, targets_n[part], grads[0][part])
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            narrow = grad_logits.to(weight_VH.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = narrow @ weight_VH
            if grad_weight is not None:
                add_product(grad_weight, narrow.T, hidden)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            *(None,) * 4,
        )


def _joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


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
        hidden_nH: (n, H) last hidden states.
        targets_n: (n,) ids of the tokens to score.
        stats: whether to give entropy and self-certainty as well.
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
