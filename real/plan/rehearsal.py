"""Memory of a forward and backward pass, from one on tensors that hold no data (device meta)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from real.update.head import Head
from real.update.logprobs import checkpointed
from real.update.scores import head_scores

KERNEL = "rehearsal"
"""Name of the attention kernel below in transformers."""


def peak_bytes(model: Any, n_rows: int, length: int, chunk_elements: int) -> int:
    """Return the most bytes that a pass holds at once, besides parameters and their gradients.

    Args:
        model: a causal language model on the device meta, made with the attention `KERNEL`; its
            layers are checkpointed if it is set so.
        n_rows: sequences of the pass.
        length: tokens of each.
        chunk_elements: logits that exist at once.
    """
    ids = torch.zeros((n_rows, length), dtype=torch.long, device="meta")
    with _freed_gradients(model), LiveBytes(model.parameters()) as live:
        with checkpointed(model):
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        head = Head(model.get_output_embeddings())
        flat = hidden.flatten(0, 1)
        scores = head_scores(head, flat, ids.flatten(), 1.0, chunk_elements=chunk_elements)
        scores.logprobs_n.sum().backward()
    return live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made meanwhile and still exist."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        """Count from now on.

        Args:
            known: tensors that exist before, which are not counted.
        """
        super().__init__()
        self.live = self.peak = 0
        self._known = [tensor.untyped_storage() for tensor in known]
        self._seen = set(map(id, self._known))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its results."""
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        self.peak = max(self.peak, self.live)
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, n_bytes = id(storage), storage.nbytes()
        if key not in self._seen:
            self._seen.add(key)
            self.live += n_bytes
            weakref.finalize(storage, self._remove, key, n_bytes).atexit = False

    def _remove(self, key: int, n_bytes: int) -> None:
        self._seen.discard(key)
        self.live -= n_bytes


@contextlib.contextmanager
def _freed_gradients(model: Any) -> Iterator[None]:
    """Free each parameter's gradient once it is complete, as masters do."""
    trained = [p for p in model.parameters() if p.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(_free) for p in trained]
    yield
    for hook in hooks:
        hook.remove()


def _free(parameter: Tensor) -> None:
    parameter.grad = None


class _Attention(torch.autograd.Function):
    """The tensors that a fused attention kernel keeps and makes, without any values."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # (rows, heads, tokens, width); log-sums of the rows' scores in single precision.
        out = torch.empty_like(query)
        ctx.save_for_backward(
            query, key, value, out, query.new_empty(query.shape[:3], dtype=torch.float32)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, _, _ = ctx.saved_tensors
        summed = torch.empty_like(query, dtype=torch.float32)
        grads_qkv = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        del summed
        return grads_qkv


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    attended: Any = _Attention.apply(query, key, value)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(KERNEL, _attention)
