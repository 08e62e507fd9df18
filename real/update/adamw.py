"""Master weights: low-precision parameters are updated through copies in single precision.

At a learning rate of 1e-6 an update is far smaller than the gap between neighbouring bfloat16
numbers, so most weights would never move. Gradients too are added up in single precision: each
backward pass moves its low-precision gradient over and frees it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from real.ranks.distributed import local_shard, sharded_like


class Masters:
    """Parameters that the optimizer updates in place of the model's."""

    def __init__(self, parameters: Sequence[Tensor], on_host: bool = False) -> None:
        """Copy parameters that are less precise than single precision, and watch their gradients.

        Args:
            on_host: whether the copies are kept in main memory.
        """
        self.parameters = list(parameters)
        self.tensors = [_master(p, on_host) if _low(p) else p for p in self.parameters]
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
    if tensor.is_cuda and not registered(torch.cuda.cudart(), copied):
        warnings.warn(
            "offload_optimizer: CUDA could not register main memory, so copies to and from the GPU "
            "are slower; raise the limit of locked memory (ulimit -l)",
            stacklevel=2,
        )
        with contextlib.suppress(RuntimeError):
            # The error stays pending until a kernel is launched, which raises it: this one.
            torch.ones(1, device=tensor.device)
    return copied


def registered(runtime: Any, memory: Tensor) -> bool:
    """Let CUDA reach main memory directly; returns whether it can.

    Registered, not allocated as pinned: torch would round the size up to a power of two. The shard
    of a rank may be empty, which CUDA refuses.

    Args:
        runtime: CUDA's, as `torch.cuda.cudart` returns it.
    """
    size = memory.numel() * memory.element_size()
    return not size or int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)) == 0


def _move_gradient(parameter: Tensor, sums: Tensor) -> None:
    def move(filled: Tensor) -> None:
        if filled.grad is not None:
            sums.add_(filled.grad)
        filled.grad = None

    parameter.register_post_accumulate_grad_hook(move)


BLOCK_ELEMENTS = 2**26
"""Weights that are moved at a time: so many are kept twice, to measure their change."""
CPU_BLOCK_ELEMENTS = 2**20
"""On a CPU, whose caches hold them: a step over 135 million weights took 0.7 of the time, and its
norm, added up in single precision, was off by 1e-4 in place of 3e-3."""


class _Piece(NamedTuple):
    """Part of a weight, flattened where it is not all of it."""

    place: int
    part: slice | None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else tensor.view(-1)[self.part]


class MeasuredAdamW:
    """Fused AdamW over blocks of weights, one after the other.

    The weights and moments of a block may be kept in main memory: they are copied to the device of
    its gradients, moved, and copied back.
    """

    def __init__(
        self,
        masters: Masters,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        on_host: bool = False,
        block_elements: int | None = None,
    ) -> None:
        """Make the moments, which are zero before the first step.

        Args:
            eps: added to the root of the second moment.
            on_host: whether moments are kept in main memory.
            block_elements: weights that are moved at a time; if None as suits their device.
        """
        self._masters = masters
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        self._on_host = on_host
        self.n_steps = 0
        """Steps that were taken."""
        shards = self._shards()
        self._moments = [
            [_zeros(shard, on_host) for shard in shards] for _ in ("exp_avg", "exp_avg_sq")
        ]
        on_cpu = shards[0].device.type == "cpu" and not on_host
        most = block_elements or (CPU_BLOCK_ELEMENTS if on_cpu else BLOCK_ELEMENTS)
        self._blocks = list(_blocks(shards, most))

    def moments_of(self, index: int) -> dict[str, Tensor]:
        """Return the live `exp_avg` and `exp_avg_sq` of a weight, sharded as it is."""
        weight = self._masters.tensors[index]
        names = ("exp_avg", "exp_avg_sq")
        return {
            name: sharded_like(shards[index], weight)
            for name, shards in zip(names, self._moments, strict=True)
        }

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Move all weights.

        Returns:
            The L2 norm of the change of this rank's shards.
        """
        sources = (self._shards(), *self._moments)
        gradients = self._masters.gradients()
        norms = [self._move(block, sources, gradients, lr) for block in self._blocks]
        self.n_steps += 1
        if not norms:
            return torch.zeros((), device=gradients[0].device)
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def _move(
        self,
        block: list[_Piece],
        sources: tuple[list[Tensor], ...],
        gradients: list[Tensor],
        lr: float,
    ) -> Tensor:
        """Move one block; `sources` are weights and moments."""
        grads = [piece.of(gradients[piece.place]) for piece in block]
        kept = [[piece.of(source[piece.place]) for piece in block] for source in sources]
        used = [
            [self._fetched(p, grad) for p, grad in zip(parts, grads, strict=True)] for parts in kept
        ]
        weights, exp_avgs, exp_avg_sqs = used
        before = [weight.clone() for weight in weights]
        n_steps = torch.full((len(block),), float(self.n_steps), device=grads[0].device)
        adamw(
            weights,
            grads,
            exp_avgs,
            exp_avg_sqs,
            [],
            list(n_steps.unbind()),
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=lr,
            weight_decay=self._weight_decay,
            eps=self._eps,
            maximize=False,
        )
        torch._foreach_sub_(before, weights)  # pyright: ignore[reportPrivateImportUsage]
        for parts, moved in zip(kept, used, strict=True):
            for part, value in zip(parts, moved, strict=True):
                if part is not value:
                    part.copy_(value, non_blocking=True)
        self._round(block, weights)
        return get_total_norm(before)

    def _fetched(self, part: Tensor, grad: Tensor) -> Tensor:
        """A copy on the device of the gradient, where the state is kept in main memory."""
        on_host = self._on_host and part.device.type == "cpu"
        return part.to(grad.device, non_blocking=True, copy=True) if on_host else part

    def _round(self, block: list[_Piece], weights: list[Tensor]) -> None:
        """Round moved masters into the parameters that they are copies of."""
        for piece, weight in zip(block, weights, strict=True):
            parameter = self._masters.parameters[piece.place]
            if parameter is not self._masters.tensors[piece.place]:
                piece.of(parameter.detach()).copy_(weight)

    def _shards(self) -> list[Tensor]:
        with torch.no_grad():
            return [local_shard(tensor) for tensor in self._masters.tensors]


def _zeros(like: Tensor, on_host: bool) -> Tensor:
    zeros = torch.zeros_like(like, requires_grad=False)
    return host_copy(zeros) if on_host else zeros


def _blocks(shards: list[Tensor], block_elements: int) -> Iterable[list[_Piece]]:
    block: list[_Piece] = []
    room = block_elements
    for index, shard in enumerate(shards):
        n = shard.numel()
        starts = range(0, n, block_elements) if shard.is_contiguous() else range(min(n, 1))
        for start in starts:
            size = min(n - start, block_elements)
            if block and size > room:
                yield block
                block, room = [], block_elements
            block.append(_Piece(index, slice(start, start + size) if len(starts) > 1 else None))
            room -= size
    if block:
        yield block
