"""Master weights: low-precision parameters are updated through copies in single precision.

At a learning rate of 1e-6 an update is far smaller than the gap between neighbouring bfloat16
numbers, so most weights would never move. Gradients too are added up in single precision: each
backward pass moves its low-precision gradient over and frees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from real.ranks.sharding import local_shard


class Masters:
    """Parameters that the optimizer updates in place of the model's."""

    def __init__(
        self, parameters: Sequence[Tensor], copy: bool = True, on_host: bool = False
    ) -> None:
        """Copy parameters that are less precise than single precision, and watch their gradients.

        Args:
            parameters: trainable ones of the model.
            copy: whether to make copies; without, the parameters are their own masters.
            on_host: whether the copies are kept in main memory.
        """
        self.parameters = list(parameters)
        self.tensors = [_master(p, on_host) if copy and _low(p) else p for p in self.parameters]
        """One per parameter, the parameter itself where it needs no copy."""
        self._sums = [
            self._watched(p, m) for p, m in zip(self.parameters, self.tensors, strict=True)
        ]

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return this rank's shards of the gradients, one per master, zero before a pass."""
        return [
            local_shard(parameter.grad) if sums is None and parameter.grad is not None else sums
            for parameter, sums in zip(self.parameters, self._sums, strict=True)
        ]  # pyright: ignore[reportReturnType]

    def zero_gradients(self) -> None:
        """Set the gradients to zero, in place."""
        torch._foreach_zero_(self.gradients())  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model's parameters."""
        for parameter, master in zip(self.parameters, self.tensors, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    @staticmethod
    def _watched(parameter: Tensor, master: Tensor) -> Tensor | None:
        """The sum of a parameter's gradients where it has a copy; else its own grows in place."""
        if master is parameter:
            parameter.grad = torch.zeros_like(parameter)
            return None
        sums = torch.zeros_like(parameter, dtype=master.dtype)
        _move_gradient(parameter, sums)
        return sums


def _low(parameter: Tensor) -> bool:
    return torch.finfo(parameter.dtype).bits < 32


def _master(parameter: Tensor, on_host: bool) -> Tensor:
    wide = parameter.detach().to(torch.float32, copy=True)
    return host_copy(wide) if on_host else wide


@torch.no_grad()
def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy in main memory, which CUDA can reach directly if the tensor is on a GPU."""
    copied = torch.empty_like(tensor, device="cpu").copy_(tensor)
    if tensor.is_cuda:
        # Registered, not allocated as pinned: torch would round the size up to a power of two.
        runtime: Any = torch.cuda.cudart()
        runtime.cudaHostRegister(copied.data_ptr(), copied.numel() * copied.element_size(), 0)
    return copied


def _move_gradient(parameter: Tensor, sums: Tensor) -> None:
    def move(filled: Tensor) -> None:
        if filled.grad is not None:
            sums.add_(filled.grad)
        filled.grad = None

    parameter.register_post_accumulate_grad_hook(move)
