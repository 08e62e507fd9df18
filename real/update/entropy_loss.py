"""Entropy of the next-token distribution as a loss, with gradient.

For one-shot entropy minimisation. With z the logits over the temperature, p their softmax and
H = -sum_v p_v log p_v, the gradient is dH/dz_v = -p_v (log p_v + H).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from real.update.head import CHUNK_ELEMENTS, Head, chunked
from real.update.logprobs import Scorer
from real.update.packing import PackedRows
from real.update.scores import TokenScores


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
    no_targets_n = hidden_nH.new_zeros(len(hidden_nH), dtype=torch.long)
    return chunked(head, hidden_nH, no_targets_n, _Entropies(temperature), chunk_elements)[0]


def entropies(logits_nV: Tensor, temperature: float) -> Tensor:
    """(n,) entropies of (n, V) logits in nats, with gradient; impossible tokens add nothing."""
    return _Entropy.apply(logits_nV, temperature)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class _Entropies:
    """The numbers of `entropies`, which no target changes."""

    temperature: float

    def __call__(self, logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, ...]:
        return (entropies(logits_nV, self.temperature),)

    def grad_logits(self, logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor) -> Tensor:
        return _grad_logits(logits_nV, grad_n, self.temperature)

    def scaled(self, factor: float) -> _Entropies:
        return replace(self, temperature=self.temperature / factor)


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
