"""One model over several GPUs: FSDP2 shards of its layers, and whole tensors out of shards.

A sharded parameter is a DTensor. Its optimizer state is sharded like it, norms are of the whole,
and nothing else of the trainer knows. Everything that gathers must be done by all ranks in the
same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(scorer: Any, mesh: DeviceMesh) -> None:
    """Shard a `Scorer` over the ranks of a mesh, in place: each layer, then all that is left.

    Gradients are summed up over ranks in single precision at least, whatever that of the weights.
    The root is gathered again for each pass as the layers are: left whole after a pass without a
    gradient, it would outlive the next update.
    """
    weights = next(scorer.parameters()).dtype
    precision = MixedPrecisionPolicy(reduce_dtype=torch.promote_types(weights, torch.float32))
    layers = [m for m in scorer.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, scorer):
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def is_sharded(model: Any) -> bool:
    """True if the model went through `shard`."""
    return is_split(model.parameters())


def is_split(tensors: Iterable[Tensor]) -> bool:
    """True if some of the tensors are sharded."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tensor in pieces along its first dimension, as several ranks wrote them.

    Its values are read from the disk when they are asked for.
    """

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole."""
        rows = sum(len(part) for part in self.parts)
        return torch.Size([rows, *self.parts[0].shape[1:]])

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows from `start` up to `stop`, copied."""
        found, end = [], 0
        for part in self.parts:
            begin, end = end, end + len(part)
            if begin < stop and end > start:
                found.append(part[max(start - begin, 0) : stop - begin])
        return torch.cat(found) if found else self.parts[0][:0].clone()

    def whole(self) -> Tensor:
        """All rows."""
        return self.rows(0, self.shape[0])


def local_tensors(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The shards that a rank holds, and on the first rank also the tensors that all have."""
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, DTensor) or rank == 0
    }


def shard_of(whole: Tensor | Pieces, other: Tensor) -> Tensor:
    """A copy of this rank's shard of a tensor: sharded, and placed, like another one.

    Of a file that is mapped into memory only that shard is read.
    """
    if not isinstance(other, DTensor):
        copy = whole.whole() if isinstance(whole, Pieces) else whole.clone()
        return copy.to(other.device)
    # As FSDP2 cuts: equal numbers of rows, and what is left on the last ranks that have any.
    n_rows, rank = other.shape[0], other.device_mesh.get_local_rank()
    each = -(-n_rows // other.device_mesh.size())
    start, stop = min(each * rank, n_rows), min(each * (rank + 1), n_rows)
    local = whole.rows(start, stop) if isinstance(whole, Pieces) else whole[start:stop].clone()
    return DTensor.from_local(
        local.to(other.device),
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=other.shape,
        stride=other.stride(),
    )
