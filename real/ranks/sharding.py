"""One model over several GPUs: FSDP2 shards of its layers, and whole tensors out of shards.

A sharded parameter is a DTensor. Its optimizer state is sharded like it, norms are of the whole,
and nothing else of the trainer knows. Everything that gathers must be done by all ranks in the
same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(scorer: Any, mesh: DeviceMesh) -> None:
    """Shard a `Scorer` over the ranks of a mesh, in place: each layer, then all that is left.

    Shards of trained weights are in single precision at least and serve the optimizer as its
    masters; the model computes with them rounded to the precision that it has now. Gradients are
    summed over ranks in single precision. The root is gathered again for each pass as the layers
    are: left whole after a pass without a gradient, it would outlive the next update.
    """
    weights = next(scorer.parameters()).dtype
    wide = torch.promote_types(weights, torch.float32)
    widened = wide != weights
    precision = MixedPrecisionPolicy(param_dtype=weights if widened else None, reduce_dtype=wide)
    layers = [m for m in scorer.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, scorer):
        for parameter in module.parameters() if widened else ():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                parameter.data = parameter.data.to(wide)
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def computed_with(parameter: Tensor, model: Any) -> torch.dtype:
    """Return the precision that a model computes with a parameter in.

    That of the parameter, unless its shards are wider than the model was when it was loaded.
    """
    loaded: Any = getattr(model.config, "dtype", None)
    shard_is_wider = isinstance(parameter, DTensor) and parameter.dtype == torch.float32
    return loaded if shard_is_wider and loaded is torch.bfloat16 else parameter.dtype


def is_sharded(model: Any) -> bool:
    """True if the model went through `shard`."""
    return is_split(model.parameters())


def is_split(tensors: Iterable[Tensor]) -> bool:
    """True if some of the tensors are sharded."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, which shares its memory; itself where not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(local: Tensor, other: Tensor) -> Tensor:
    """Return this rank's shard as part of a whole that is sharded as another tensor is."""
    if not isinstance(other, DTensor):
        return local
    mesh = other.device_mesh
    if local.device.type != mesh.device_type:
        mesh = _host_mesh(dist.group.WORLD, mesh.size())
    shape: Any = other.shape
    return DTensor.from_local(
        local, mesh, other.placements, run_check=False, shape=shape, stride=other.stride()
    )


@lru_cache(maxsize=1)
def _host_mesh(group: Any, size: int) -> DeviceMesh:
    """The mesh of all ranks for tensors in main memory; `group` is that of all ranks."""
    return init_device_mesh("cpu", (size,))


def norm_over_ranks(norm: Tensor, sharded: bool) -> Tensor:
    """Return the L2 norm of a whole from that of each rank's shard."""
    if not sharded:
        return norm
    squared = norm.square()
    dist.all_reduce(squared)
    return squared.sqrt()


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
