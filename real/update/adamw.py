"""AdamW that says how far it went, without a second copy of all parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**26
"""Parameters that are kept twice at a time, to measure their change."""


class MeasuredAdamW:
    """Fused AdamW over blocks of parameters, one after the other."""

    def __init__(
        self, parameters: Sequence[Tensor], block_elements: int = BLOCK_ELEMENTS, **settings: Any
    ) -> None:
        """Prepare it.

        Args:
            parameters: to move.
            block_elements: most elements of a block; a larger parameter is a block of its own.
            settings: of `torch.optim.AdamW`.
        """
        self._blocks = _blocks(parameters, block_elements)
        self._adamws = [torch.optim.AdamW(block, fused=True, **settings) for block in self._blocks]
        self._owner = {
            parameter: adamw
            for block, adamw in zip(self._blocks, self._adamws, strict=True)
            for parameter in block
        }

    def zero_grad(self) -> None:
        """Gradients to zero, in place."""
        for adamw in self._adamws:
            adamw.zero_grad(set_to_none=False)

    def state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Its `step`, `exp_avg` and `exp_avg_sq`, to read and to replace; empty before a step."""
        return self._owner[parameter].state[parameter]

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Move all parameters; returns the L2 norm of the change of all together."""
        norms = []
        for block, adamw in zip(self._blocks, self._adamws, strict=True):
            before = [p.clone() for p in block]
            for group in adamw.param_groups:
                group["lr"] = lr
            adamw.step()
            change = [new - old for new, old in zip(block, before, strict=True)]
            norms.append(torch.nn.utils.get_total_norm(change))
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _blocks(parameters: Sequence[Tensor], block_elements: int) -> list[list[Tensor]]:
    blocks: list[list[Tensor]] = []
    room = 0
    for parameter in parameters:
        if not blocks or parameter.numel() > room:
            blocks.append([])
            room = block_elements
        blocks[-1].append(parameter)
        room -= parameter.numel()
    return blocks
