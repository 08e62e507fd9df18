"""Entropy of the next-token distribution as a loss, with gradient, a chunk of tokens at a time.

For one-shot entropy minimisation. With z the logits over the temperature, p their softmax and
H = -sum_v p_v log p_v, the gradient is dH/dz_v = -p_v (log p_v + H). As in `head`, the logits exist
for one chunk of tokens only, and are computed again for the gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from real.update.head import CHUNK_ELEMENTS, Head, TokenScores
from real.update.logprobs import Scorer
from real.update.packing import PackedRows


class EntropyScorer(Scorer):
    """A `Scorer` whose entropies have a gradient; its log-probs, without one, are as before."""

    def forward(self, rows: PackedRows, temperature: float, stats: bool = False) -> TokenScores:
        """Entropies where gradients are recorded, and no log-probs then; else as a `Scorer`."""
        if not torch.is_grad_enabled():
            return super().forward(rows, temperature, stats)
        outputs = self.outputs(rows)
        if self.head is None:
            entropy_n = entropies(outputs, temperature)
        else:
            entropy_n = head_entropies(self.head, outputs, temperature, self.chunk_elements)
        return TokenScores(torch.full_like(entropy_n, torch.nan), entropy_n)


def head_entropies(
    head: Head, hidden_nH: Tensor, temperature: float, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """Entropies from the hidden states before the tokens, with gradient.

    Args:
        head: the model's.
        hidden_nH: (n, H) last hidden states.
        temperature: divides the logits.
        chunk_elements: most logits at once.

    Returns:
        (n,) in nats, at least single precision.
    """
    size = max(1, chunk_elements // head.linear.weight.shape[0])
    if len(hidden_nH) <= size:
        return entropies(head.logits(hidden_nH), temperature)
    if head.plain:
        weight, bias = head.linear.weight, head.linear.bias
        return _Chunked.apply(hidden_nH, weight, bias, temperature / head.factor, size)  # pyright: ignore[reportReturnType]
    chunk_loss = partial(_own_head, head, temperature)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(chunk_loss, part, **options) for part in hidden_nH.split(size)])  # pyright: ignore


def entropies(logits_nV: Tensor, temperature: float) -> Tensor:
    """(n,) entropies of (n, V) logits in nats, with gradient; impossible tokens add nothing."""
    return _Entropy.apply(logits_nV, temperature)  # pyright: ignore[reportReturnType]


class _Entropy(torch.autograd.Function):
    """Closed-form gradient: automatic differentiation would make NaN of impossible tokens."""

    @staticmethod
    def forward(ctx: Any, logits_nV: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits_nV)
        ctx.temperature = temperature
        return _entropy(_logp(logits_nV, temperature))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (logits_nV,) = ctx.saved_tensors
        return _grad_logits(logits_nV, grads[0], ctx.temperature).to(logits_nV.dtype), None


class _Chunked(torch.autograd.Function):
    """Entropies under a plain linear head; its logits are made twice and never all at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_nH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        temperature: float,
        size: int,
    ) -> Tensor:
        ctx.save_for_backward(hidden_nH, weight_VH, bias_V)
        ctx.temperature, ctx.size = temperature, size
        parts = (linear(hidden, weight_VH, bias_V) for hidden in hidden_nH.split(size))
        return torch.cat([_entropy(_logp(logits, temperature)) for logits in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_nH, weight_VH, bias_V = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        # Summed over chunks in single precision, whatever that of the weights.
        wide = torch.promote_types(weight_VH.dtype, torch.float32)
        grad_hidden = torch.empty_like(hidden_nH) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=wide) if wants_bias else None
        for start in range(0, len(hidden_nH), ctx.size):
            part = slice(start, start + ctx.size)
            hidden = hidden_nH[part]
            logits = linear(hidden, weight_VH, bias_V)
            grad_logits = _grad_logits(logits, grads[0][part], ctx.temperature)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            narrow = grad_logits.to(weight_VH.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = narrow @ weight_VH
            if grad_weight is not None:
                grad_weight += narrow.T @ hidden
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
            None,
        )


def _own_head(head: Head, temperature: float, hidden_nH: Tensor) -> Tensor:
    return entropies(head.logits(hidden_nH), temperature)


def _logp(logits_nV: Tensor, temperature: float) -> Tensor:
    wide = torch.promote_types(logits_nV.dtype, torch.float32)
    return torch.log_softmax(logits_nV.to(wide) / temperature, dim=-1)


def _entropy(logp_nV: Tensor) -> Tensor:
    return torch.special.entr(logp_nV.exp()).sum(-1)


def _grad_logits(logits_nV: Tensor, grad_n: Tensor, temperature: float) -> Tensor:
    """(n, V) gradient of the raw logits: `-g p_v (log p_v + H) / temperature`."""
    logp_nV = _logp(logits_nV, temperature)
    p_nV = logp_nV.exp()
    entropy_n1 = torch.special.entr(p_nV).sum(-1, keepdim=True)
    surprise_nV = torch.where(p_nV > 0, logp_nV, 0.0).add_(entropy_n1)
    return p_nV.mul_(surprise_nV).mul_((-grad_n / temperature)[:, None])
