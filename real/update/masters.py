"""Master weights: copies in single precision of weights that the model holds in a lower one.

At a learning rate of 1e-6 most bfloat16 weights would never move. Gradients of several backward
passes are added up in single precision too.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from real.ranks.distributed import local_shard


class Masters:
    """Parameters that the optimizer updates in place of the model's."""

    def __init__(self, parameters: Sequence[Tensor], on_host: bool = False) -> None:
        """Copy parameters below single precision, to main memory if `on_host`; watch gradients."""
        self.parameters: list[Any] = list(parameters)
        self.on_host = on_host
        self.tensors: list[Tensor] = []
        """One per parameter, the parameter itself where it needs no copy."""
        self._sums: list[_Sum | None] = []
        for parameter in self.parameters:
            if torch.finfo(parameter.dtype).bits >= 32:  # its own gradient grows in place
                parameter.grad = torch.zeros_like(parameter)
                self.tensors.append(parameter)
                self._sums.append(None)
                continue
            home = torch.device("cpu") if on_host else parameter.device
            wide = parameter.detach().to(home, torch.float32, copy=True)
            self.tensors.append(reachable(wide, parameter.device))
            self._sums.append(_Sum(parameter))

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return this rank's shards of gradients, one per master, of one pass perhaps narrow."""
        return [
            sums.value() if sums else local_shard(parameter.grad)
            for parameter, sums in zip(self.parameters, self._sums, strict=True)
        ]

    @torch.no_grad()
    def zero_gradients(self) -> None:
        """Set the gradients to zero, in place."""
        pairs = list(zip(self.parameters, self._sums, strict=True))
        if gradients := [local_shard(p.grad) for p, sums in pairs if sums is None]:
            torch._foreach_zero_(gradients)
        for sums in filter(None, self._sums):
            sums.total = None


class _Sum:
    """The sum of a parameter's gradients, to which each backward pass moves its own.

    It is as wide as the master, or as the parameter while no step had several passes.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._wide: Tensor | None = None
        self.total: Tensor | None = None
        """None where it is zero; else the first gradient itself, or `_wide`."""
        parameter.register_post_accumulate_grad_hook(self._move)

    def value(self) -> Tensor:
        if self.total is None:
            self.total = self._widened().zero_()
        return self.total

    def _move(self, filled: Any) -> None:
        gradient, filled.grad = filled.grad, None
        if self.total is None:
            self.total = gradient if self._wide is None else self._wide.copy_(gradient)
            return
        if self.total is not self._wide:
            self.total = self._widened().copy_(self.total)
        self.total.add_(gradient)

    def _widened(self) -> Tensor:
        if self._wide is None:
            self._wide = torch.empty_like(self._parameter, dtype=torch.float32, requires_grad=False)
        return self._wide


def reachable(memory: Tensor, device: torch.device) -> Tensor:
    """Return the tensor itself; CUDA can reach main memory directly if the device is a GPU."""
    on_host = memory.device.type == "cpu" and device.type == "cuda"
    if on_host and not registered(torch.cuda.cudart(), memory):
        warnings.warn(
            "offload_optimizer: CUDA could not register main memory, so copies to and from the GPU "
            "are slower; raise the limit of locked memory (ulimit -l)",
            stacklevel=2,
        )
        with contextlib.suppress(RuntimeError):
            # The error stays pending until a kernel is launched, which raises it: this one.
            torch.ones(1, device=device)
    return memory


def registered(runtime: Any, memory: Tensor) -> bool:
    """Let CUDA, as `torch.cuda.cudart` returns it, reach main memory; returns whether it can."""
    # torch would round pinned memory up to a power of two. CUDA refuses an empty shard.
    size = memory.numel() * memory.element_size()
    return not size or int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)) == 0
