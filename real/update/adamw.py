"""AdamW that says how far it went, with its state on the device or in main memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from real.ranks.sharding import local_shard, sharded_like
from real.update.masters import Masters, host_copy

BLOCK_ELEMENTS = 2**26
"""Weights that are moved at a time: so many are kept twice, to measure their change."""


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
        block_elements: int = BLOCK_ELEMENTS,
    ) -> None:
        """Make the moments, which are zero before the first step.

        Args:
            masters: weights to move.
            betas: of the two moments.
            eps: added to the root of the second moment.
            weight_decay: decoupled.
            on_host: whether moments are kept in main memory.
            block_elements: most weights of a block.
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
        self._blocks = list(_blocks(shards, block_elements))

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
