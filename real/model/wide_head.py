"""Logits in single precision from low-precision weights.

In bfloat16 a logit between 16 and 32 is a multiple of 1/8, so a log-prob at temperature 0.6 is
rounded by up to 0.1: as much as the clip range of the loss. A product in single precision costs
nothing on a GPU, whose matrix units add up in single precision in any case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

_MATRIX_UNITS = ("cuda", "meta")
"""Kinds of devices with products of low-precision matrices that give single precision."""


class WideHead(nn.Linear):
    """An output layer whose logits are in single precision, whatever its weights are."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., V) logits of (..., H) hidden states."""
        if self.weight.dtype == torch.float32 or self.weight.dtype == torch.float64:
            return super().forward(input)
        flat: Any = _Product.apply(input.flatten(0, -2), self.weight, self.bias)
        return flat.view(*input.shape[:-1], -1)


def widen_head(model: Any) -> None:
    """Let a model's output layer give logits in single precision, in place.

    Does nothing where that layer is more than a matrix.
    """
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        head.__class__ = WideHead


def wide_product(hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    """(n, V) `linear(hidden, weight, bias)` of low-precision numbers in single precision."""
    if hidden_nH.device.type not in _MATRIX_UNITS:
        bias = None if bias_V is None else bias_V.float()
        return linear(hidden_nH.float(), weight_VH.float(), bias)
    logits_nV = torch.mm(hidden_nH, weight_VH.T, out_dtype=torch.float32)
    return logits_nV if bias_V is None else logits_nV.add_(bias_V)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to a total of at least their precision, in place."""
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    elif right.device.type in _MATRIX_UNITS:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


class _Product(torch.autograd.Function):
    """`wide_product` with gradient, whose products are of low-precision numbers as well."""

    @staticmethod
    def forward(ctx: Any, hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden_nH, weight_VH)
        return wide_product(hidden_nH, weight_VH, bias_V)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_nH, weight_VH = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad
        narrow_nV = grads[0].to(weight_VH.dtype)
        return (
            narrow_nV @ weight_VH if needs_hidden else None,
            narrow_nV.T @ hidden_nH if needs_weight else None,
            grads[0].sum(0).to(weight_VH.dtype) if needs_bias else None,
        )
