"""A key-value cache that grows in place.

The library's dynamic cache copies itself at every token, which for a small model costs as much as
the model. Here full-attention layers write into a buffer with room to spare and hand out views;
other kinds of layers (sliding windows, recurrent states) stay the library's own.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

_BLOCK = 256
"""Tokens by which a buffer grows at least."""


def new_cache(config: Any) -> DynamicCache:
    """An empty cache with the layer kinds that the model's config asks for."""
    return DynamicCache(config=config)


def expand_cache(cache: DynamicCache, rows_B: torch.Tensor, capacity: int) -> None:
    """Copy rows of a filled cache, in place, and make it grow cheaply.

    Args:
        cache: cache of P prompts.
        rows_B: (B,) which prompt each of the new rows continues.
        capacity: most tokens that a row will hold.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            cache.layers[place] = BufferedLayer(layer.keys, layer.values, rows_B, capacity)
        else:
            layer.reorder_cache(cast(torch.LongTensor, rows_B))


def select_rows(cache: DynamicCache, rows_B: torch.Tensor) -> None:
    """Keep these rows of a cache, in place and in this order."""
    cache.reorder_cache(cast(torch.LongTensor, rows_B))


class BufferedLayer(DynamicLayer):
    """A full-attention layer whose keys and values are views of larger buffers."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, rows_B: torch.Tensor, capacity: int
    ) -> None:
        """Start from rows of (P, heads, tokens, width) keys and values."""
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._capacity = capacity
        self._set(keys[rows_B], values[rows_B])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (B, heads, new tokens, width) states; returns all keys and values so far."""
        start, end = self._length, self._length + key_states.shape[-2]
        if end > self._keys.shape[-2]:
            self._keys, self._values = (
                self._buffer(self._keys, end),
                self._buffer(self._values, end),
            )
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        return self._show(end)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        end = self._length
        self._set(self._keys[beam_idx, :, :end], self._values[beam_idx, :, :end])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        self.reorder_cache(indices)

    def _set(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        end = keys.shape[-2]
        self._keys, self._values = self._buffer(keys, end + 1), self._buffer(values, end + 1)
        self._show(end)

    def _show(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._length = length
        self.keys, self.values = self._keys[:, :, :length], self._values[:, :, :length]
        return self.keys, self.values

    def _buffer(self, states: torch.Tensor, needed: int) -> torch.Tensor:
        rows, heads, length, width = states.shape
        room = max(needed, min(self._capacity, needed + max(_BLOCK, needed // 2)))
        buffer = states.new_empty((rows, heads, room, width))
        buffer[:, :, :length] = states
        return buffer
