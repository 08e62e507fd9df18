"""Master weights: low-precision parameters are updated through copies in single precision.

At a learning rate of 1e-6 an update is far smaller than the gap between neighbouring bfloat16
numbers, so most weights would never move. Gradients too are added up in single precision: each
backward pass moves its low-precision gradient over and frees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Masters:
    """Parameters that the optimizer updates in place of the model's."""

    def __init__(self, parameters: Sequence[Tensor], copy: bool = True) -> None:
        """Copy parameters that are less precise than single precision, and watch their gradients.

        Args:
            parameters: trainable ones of the model.
            copy: whether to make copies; without, the parameters are their own masters.
        """
        self.parameters = list(parameters)
        self.tensors = [_master(p) if copy and _low(p) else p for p in self.parameters]
        """One per parameter, the parameter itself where it needs no copy; with zeros as `.grad`."""
        for parameter, master in zip(self.parameters, self.tensors, strict=True):
            master.grad = torch.zeros_like(master)
            if master is not parameter:
                _move_gradient(parameter, master)

    @property
    def any(self) -> bool:
        """Some parameter has a copy."""
        return any(m is not p for m, p in zip(self.tensors, self.parameters, strict=True))

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model's parameters."""
        for parameter, master in zip(self.parameters, self.tensors, strict=True):
            if master is not parameter:
                parameter.copy_(master)


def _low(parameter: Tensor) -> bool:
    return torch.finfo(parameter.dtype).bits < 32


def _master(parameter: Tensor) -> Tensor:
    return parameter.detach().to(torch.float32, copy=True).requires_grad_()


def _move_gradient(parameter: Tensor, master: Tensor) -> None:
    def move(filled: Tensor) -> None:
        if master.grad is not None and filled.grad is not None:
            master.grad.add_(filled.grad)
        filled.grad = None

    parameter.register_post_accumulate_grad_hook(move)
