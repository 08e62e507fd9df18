"""How a mini-batch, vLLM's weights and FSDP's state are spread over the GPUs of a cluster."""

from __future__ import annotations

from typing import NamedTuple

from lab.errors import UserError
from real.plan.model_size import PlannedModel

_ENGINE_SHARE, _STATE_SHARE = 0.25, 0.5
"""Shares of a GPU's memory that its part of vLLM's weights, and of FSDP's state, may take."""
_STATE_BYTES = 16
"""Of a weight under FSDP: itself, its gradient and AdamW's moments, in single precision."""


class Spread(NamedTuple):
    """Numbers of GPUs that share a thing."""

    data_ranks: int
    """Parts into which the rows of a mini-batch are dealt."""
    sequence_ranks: int
    """GPUs that share each row."""
    tensor_ranks: int
    """GPUs that share the weights of one of vLLM's engines."""
    offload: bool
    """Whether FSDP's state is kept on the host."""


def spread(model: PlannedModel, rows: int, nodes: int, gpus: int, card: float) -> Spread:
    """Return how a run is spread over the GPUs of a cluster.

    Args:
        model: that is trained.
        rows: of a mini-batch.
        nodes: of the cluster.
        gpus: of each node.
        card: bytes of each GPU.

    Raises:
        UserError: so many GPUs cannot share the rows evenly.
    """
    world, size = nodes * gpus, model.size()
    shared = [n for n in range(1, size.n_heads + 1) if world % n == 0 == size.n_heads % n]
    even = next((n for n in shared if rows % (world // n) == 0), None)
    if even is None:
        raise UserError(
            f"nodes, gpus: the {rows} rows of a mini-batch cannot be dealt evenly to {world} GPUs; "
            "take a power of two"
        )
    copies = [n for n in shared if gpus % n == 0]
    fits = (n for n in copies if 2 * size.n_weights / n <= _ENGINE_SHARE * card)
    offload = _STATE_BYTES * size.n_weights / world > _STATE_SHARE * card
    return Spread(world // even, even, next(fits, copies[-1]), offload)
