"""A model's weights as engines take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from real.model.lora import merged_weights
from real.ranks.sharding import whole_tensor


def named_weights(
    model: Any, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name in the checkpoint and value of every weight, one at a time.

    Adapters are merged in. Tied weights come once, under the embedding's name: an engine ties them
    itself, and some refuse an output head that the model's config does not name.

    Args:
        model: a causal language model of transformers. Sharded weights are gathered, so with
            several ranks all of them must exhaust the iterator.
        dtype: of the floating-point weights; unchanged if None.
    """
    for name, value in stored_weights(model, dtype):
        yield name, whole_tensor(value)


def stored_weights(
    model: Any, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same as `named_weights`, with sharded weights left sharded."""
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    for name, value in merged_weights(model):
        if not (tied and name.endswith("lm_head.weight")):
            yield name, value.to(dtype) if dtype and value.is_floating_point() else value
