"""The parts of a decoding loop: draws from logits, the tokens drawn so far, a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from real.engines.rollouts import Rollouts
from real.engines.token_stats import RunningStats


def draw(
    logits_BA: torch.Tensor,
    uniforms_B: torch.Tensor,
    temperature: float,
    top_p: float = 1.0,
    observe: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits_BA: (B, A) next-token logits, A the vocabulary.
        uniforms_B: (B,) float32 in [0, 1), one a row.
        temperature: divides the logits, in float32.
        top_p: draw only from the smallest set of likeliest tokens with at least this mass.
        observe: called with the (B, A) log-probs at that temperature, and their exponentials,
            before the cut at `top_p`.

    Returns:
        (B,) token ids and (B,) float32 log-probs before the cut at `top_p`.
    """
    logprobs_BA = torch.log_softmax(logits_BA.float() / temperature, dim=-1)
    probs_BA = logprobs_BA.exp()
    if observe is not None:
        observe(logprobs_BA, probs_BA)
    if top_p < 1:
        sorted_BA, order_BA = probs_BA.sort(dim=-1, descending=True)
        above_BA = sorted_BA.cumsum(-1) - sorted_BA  # mass of the likelier tokens
        probs_BA = probs_BA.scatter(-1, order_BA, sorted_BA.masked_fill(above_BA >= top_p, 0.0))
    cumulative_BA = probs_BA.cumsum(-1)
    # Scaled by the last sum, not by 1: then u < 1 lands on a token of positive probability.
    targets_B1 = uniforms_B[:, None] * cumulative_BA[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BA, targets_B1, right=True)
    tokens_B1 = tokens_B1.clamp_(max=logits_BA.shape[-1] - 1)  # NaN logits sort past the end
    return tokens_B1[:, 0], logprobs_BA.gather(-1, tokens_B1)[:, 0]


class StopTexts:
    """Finds responses that have just completed a text."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        """Set up.

        Args:
            tokenizer: of the model.
            texts: none of them empty.
        """
        self._tokenizer, self._texts = tokenizer, texts
        # A token is a byte at least; two more, since the first ones may be cut characters.
        self.longest = max(len(text.encode()) for text in texts) + 2

    def ended(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return (B,) bool, from the last `longest` tokens of each response."""
        written = self._tokenizer.batch_decode(tokens_BT, skip_special_tokens=True)
        found = [any(text in one for text in self._texts) for one in written]
        return torch.tensor(found, device=tokens_BT.device)


class Samples:
    """Tokens drawn so far for all R rows, and the B rows that are still in the batch."""

    def __init__(
        self,
        steps: int,
        rows: int,
        pad: int,
        eos_token_ids: list[int],
        device: torch.device,
        stop: StopTexts | None = None,
    ) -> None:
        """Make room for `steps` tokens of each of `rows` responses."""
        self.pad, self.stop = pad, stop
        self.eos = torch.tensor(eos_token_ids, device=device, dtype=torch.int64)
        self.tokens_TR = torch.full((steps, rows), pad, device=device)
        self.logprobs_TR = torch.zeros((steps, rows), device=device)
        self.lengths_R = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished_R = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rows_B = torch.arange(rows, device=device)
        self.stats: RunningStats | None = None
        self.used = 0

    def observe(self, logprobs_BA: torch.Tensor, probs_BA: torch.Tensor) -> None:
        """Add the distributions of the token that is recorded next."""
        if self.stats is None:
            self.stats = RunningStats(len(self.lengths_R))
        self.stats.add(self.rows_B, logprobs_BA, probs_BA)

    def record(self, step: int, token_B: torch.Tensor, logprob_B: torch.Tensor) -> torch.Tensor:
        """Write one token a row, padding where a row has ended; return (B,) rows that continue."""
        running_B = ~self.finished_R[self.rows_B]
        self.tokens_TR[step, self.rows_B] = torch.where(running_B, token_B, self.pad)
        self.logprobs_TR[step, self.rows_B] = torch.where(running_B, logprob_B, 0.0)
        self.lengths_R[self.rows_B] += running_B
        self.used = step + 1
        if not self.may_end:
            return running_B
        ends_B = (token_B[:, None] == self.eos).any(-1)
        if self.stop is not None:
            first = max(0, self.used - self.stop.longest)
            ends_B |= self.stop.ended(self.tokens_TR[first : self.used, self.rows_B].T)
        ends_B &= running_B
        self.finished_R[self.rows_B] |= ends_B
        return running_B & ~ends_B

    @property
    def may_end(self) -> bool:
        """A response can end before the last step."""
        return len(self.eos) > 0 or self.stop is not None

    def rollouts(self, version: int) -> Rollouts:
        """Return the samples as (R, T) rollouts, not yet split into prompts and responses."""
        tokens_RT, logprobs_RT = self.tokens_TR[: self.used].T, self.logprobs_TR[: self.used].T
        means = self.stats.means(self.lengths_R) if self.stats else (None, None)
        return Rollouts(tokens_RT, logprobs_RT, self.lengths_R, self.finished_R, version, *means)


def join(parts: list[Rollouts], n_prompts: int, n: int, pad_token_id: int) -> Rollouts:
    """Join (R, T) rollouts of chunks of rows to those of P prompts with N responses each."""
    longest = max(part.tokens_PNT.shape[-1] for part in parts)

    def rows(tensors: list[torch.Tensor], fill: float) -> torch.Tensor:
        padded = [
            torch.nn.functional.pad(tensor, (0, longest - tensor.shape[-1]), value=fill)
            for tensor in tensors
        ]
        return torch.cat(padded).view(n_prompts, n, longest)

    def optional(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        known = [tensor for tensor in tensors if tensor is not None]
        return torch.cat(known).view(n_prompts, n) if known else None

    return Rollouts(
        rows([part.tokens_PNT for part in parts], pad_token_id),
        rows([part.logprobs_PNT for part in parts], 0.0),
        torch.cat([part.lengths_PN for part in parts]).view(n_prompts, n),
        torch.cat([part.finished_PN for part in parts]).view(n_prompts, n),
        parts[0].version,
        optional([part.entropy_PV for part in parts]),
        optional([part.certainty_PV for part in parts]),
    )


_BLOCK = 256
"""Tokens by which a buffer grows at least."""


def new_cache(config: Any) -> DynamicCache:
    """Return an empty cache with the kinds of layers that the model's config names."""
    return DynamicCache(config=config)


def expand_cache(cache: DynamicCache, rows_B: torch.Tensor, capacity: int) -> None:
    """Repeat rows of a filled cache, in place, and let it grow in place.

    The library's dynamic cache copies itself at every token, which for a small model costs as much
    as the model. Layers of other kinds than full attention (sliding windows, recurrent states) stay
    the library's own.

    Args:
        cache: cache of P prompts.
        rows_B: (B,) prompt that each new row continues.
        capacity: most tokens that a row will hold.
    """
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            cache.layers[i] = BufferedLayer(layer.keys, layer.values, rows_B, capacity)
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
        self._keys, self._values, self._length = keys, values, keys.shape[-2]
        self.reorder_cache(rows_B)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (B, heads, new tokens, width) states; return all keys and values so far."""
        start, end = self._length, self._length + key_states.shape[-2]
        if end > self._keys.shape[-2]:
            # One after the other and without the views: the old buffer of each is freed at once.
            self.keys = self.values = None
            self._keys = self._buffer(self._keys, end)
            self._values = self._buffer(self._values, end)
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        return self._expose(end)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        end = self._length
        self.keys = self.values = None
        self._keys = self._buffer(self._keys[beam_idx, :, :end], end + 1)
        self._values = self._buffer(self._values[beam_idx, :, :end], end + 1)
        self._expose(end)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        self.reorder_cache(indices)

    def _expose(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._length = length
        self.keys, self.values = self._keys[:, :, :length], self._values[:, :, :length]
        return self.keys, self.values

    def _buffer(self, states: torch.Tensor, needed: int) -> torch.Tensor:
        rows, heads, length, width = states.shape
        size = max(needed, min(self._capacity, needed + max(_BLOCK, needed // 2)))
        buffer = states.new_empty((rows, heads, size, width))
        buffer[:, :, :length] = states
        return buffer


def chunk_rows(max_rows: int, n: int) -> int:
    """Return the rows of a chunk: whole prompts where they fit, so that each is read once.

    Args:
        max_rows: most responses alive at once.
        n: responses a prompt.
    """
    return max_rows // n * n or max_rows


def uniforms(rows: int, width: int, chunk: int, generator: torch.Generator) -> torch.Tensor:
    """Draw (R, T) uniforms for the rows of all ranks.

    A GPU's draws depend on how many are asked for at once, so they are drawn by the chunk, as for
    a rank that samples them all.
    """
    return torch.cat(
        [
            torch.rand(
                (min(chunk, rows - start), width), generator=generator, device=generator.device
            )
            for start in range(0, rows, chunk)
        ]
    )
