"""One model over several GPUs: FSDP2 shards of its layers, and whole tensors out of shards.

A sharded parameter is a DTensor. Its optimizer state is sharded like it, norms are of the whole,
and nothing else of the trainer knows. Everything that gathers must be done by all ranks in the
same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
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
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_of(whole: Tensor, other: Tensor) -> Tensor:
    """This rank's shard of a tensor that all ranks have: sharded, and placed, like another one."""
    if not isinstance(other, DTensor):
        return whole.to(other.device)
    placed = whole.to(other.device)
    return distribute_tensor(placed, other.device_mesh, other.placements, src_data_rank=None)
