"""Samples from a Hugging Face causal language model, in the trainer's own process.

Each prompt is read once, and its row of the cache copied for all responses at their first token or,
with a large model on a CPU, where they begin to differ. Rows without a response leave the batch.
Every response has its own uniforms, so which share a batch or a row decides nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from real.engines.rollouts import Prompts, Rollouts, Sampling, Stages, check_prompts, shard_requests
from real.model.policy import WideHead, max_positions
from real.ranks.distributed import ALONE, whole_tensor

_COMPACT_AT = 0.75
"""Ended rows leave the batch once the share of live rows falls to this; changes speed only."""
_SHARED_FROM = 2**23
"""Weights of a model from which on a CPU computes responses that are alike so far in one row. For
smaller ones telling them apart takes longer; on a GPU, copies of the cache may."""
BLOCK = 256
"""Tokens by which a buffer grows at least."""


def draw(
    logits_NA: Tensor,
    uniforms_B: Tensor,
    temperature: float,
    top_p: float = 1.0,
    observe: Callable[[Tensor, Tensor], None] | None = None,
    source_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample B tokens by inverting the cumulative distributions of N rows over A tokens.

    `uniforms_B` are in [0, 1); `source_B` is the row of each, None if they are as many. Only the
    smallest set of likeliest tokens with at least the mass `top_p` is drawn from. `observe` is
    called with the (N, A) log-probs at that temperature, and their exponentials, before that cut.
    Returns (B,) token ids and their log-probs before it.
    """
    logprobs_NA = torch.log_softmax(logits_NA.float() / temperature, dim=-1)
    probs_NA = logprobs_NA.exp()
    if observe is not None:
        observe(logprobs_NA, probs_NA)
    if top_p < 1:
        sorted_NA, order_NA = probs_NA.sort(dim=-1, descending=True)
        above_NA = sorted_NA.cumsum(-1) - sorted_NA  # mass of the likelier tokens
        probs_NA = probs_NA.scatter(-1, order_NA, sorted_NA.masked_fill(above_NA >= top_p, 0.0))
    cumulative = probs_NA.cumsum(-1)
    if source_B is None:
        source_B = torch.arange(len(cumulative), device=cumulative.device)
    else:
        cumulative = cumulative[source_B]
    # Scaled by the last sum, not by 1: then u < 1 lands on a token of positive probability.
    targets_B1 = uniforms_B[:, None] * cumulative[:, -1:]
    tokens_B = torch.searchsorted(cumulative, targets_B1, right=True)[:, 0]
    tokens_B = tokens_B.clamp(max=logits_NA.shape[-1] - 1)  # NaN logits sort past the end
    return tokens_B, logprobs_NA[source_B, tokens_B]


class RunningStats:
    """Running sums of entropy and self-certainty of the tokens of R responses.

    Self-certainty is `KL(uniform || p) = -log A - mean log p` over A tokens (Zhao et al., "Learning
    to Reason without External Rewards"). An impossible one adds no entropy and makes it infinite.
    """

    def __init__(self, rows: int, device: torch.device | None = None) -> None:
        self._size = 1
        self._sums_2R = torch.zeros((2, rows), dtype=torch.float64, device=device)

    def add(
        self, rows_B: Tensor, source_B: Tensor | None, logprobs_NA: Tensor, probs_NA: Tensor
    ) -> None:
        """Add distributions of the next tokens, in nats, to responses `rows_B`, as in `draw`."""
        # Raised to a finite number, an impossible token's term is 0 and not NaN.
        finite_NA = logprobs_NA.clamp(min=torch.finfo(logprobs_NA.dtype).min)
        values_2N = torch.stack([torch.linalg.vecdot(probs_NA, finite_NA), logprobs_NA.mean(-1)])
        self._sums_2R[:, rows_B] += values_2N if source_B is None else values_2N[:, source_B]
        self._size = logprobs_NA.shape[-1]

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return (R,) float64 mean entropies and self-certainties of the tokens, in nats."""
        entropy_R, certainty_R = -self._sums_2R / lengths_R
        return entropy_R, certainty_R - math.log(self._size)


class Samples:
    """Tokens drawn so far for all R responses, and the B of them that have not ended."""

    def __init__(self, engine: TransformersEngine, rows: int, sampling: Sampling) -> None:
        device, steps = engine.model.device, sampling.max_tokens
        self._engine, self._sampling = engine, sampling
        self.eos = torch.tensor(engine.eos_token_ids, device=device, dtype=torch.int64)
        self.tokens_TR = torch.full((steps, rows), engine.pad_token_id, device=device)
        self.logprobs_TR = torch.zeros((steps, rows), device=device)
        self.lengths_R = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished_R = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rows_B = torch.arange(rows, device=device)
        self.stats = RunningStats(rows, device) if sampling.stats else None
        self.used = 0

    def draw(self, batch: _Batch, uniforms_R: Tensor) -> Tensor:
        """Draw a token for each of B responses, and write it down; returns (B,) tokens."""
        rows_B, source_B = self.rows_B, batch.source_B
        if not self._engine.shares_rows and len(source_B) == len(batch.logits_NA):
            source_B = None  # all rows in their order
        observe = None if self.stats is None else partial(self.stats.add, rows_B, source_B)
        temperature, top_p = self._sampling.temperature, self._sampling.top_p
        logits_NA, uniforms_B = batch.logits_NA, uniforms_R[rows_B]
        token_B, logprob_B = draw(logits_NA, uniforms_B, temperature, top_p, observe, source_B)
        self.tokens_TR[self.used, rows_B] = token_B
        self.logprobs_TR[self.used, rows_B] = logprob_B
        self.lengths_R[rows_B] += 1
        self.used += 1
        return token_B

    def going_on(self, token_B: Tensor) -> Tensor | None:
        """Let responses that end with their token leave; return (B,) which stay, or None if all."""
        ends_B = (token_B[:, None] == self.eos).any(-1)
        if texts := self._sampling.stop:
            # A token is a byte at least; two more, since the first ones may be cut characters.
            longest = max(len(text.encode()) for text in texts) + 2
            tokens_BT = self.tokens_TR[max(0, self.used - longest) : self.used, self.rows_B].T
            written = self._engine.tokenizer.batch_decode(tokens_BT, skip_special_tokens=False)
            stopped = [any(text in one for text in texts) for one in written]
            ends_B |= torch.tensor(stopped, device=ends_B.device)
        if not ends_B.any():
            return None
        self.finished_R[self.rows_B] = ends_B
        self.rows_B = self.rows_B[~ends_B]
        return ~ends_B

    def rollouts(self, version: int) -> Rollouts:
        """Return the samples as (R, T) rollouts, not yet split into prompts and responses."""
        tokens_RT, logprobs_RT = self.tokens_TR[: self.used].T, self.logprobs_TR[: self.used].T
        means = self.stats.means(self.lengths_R) if self.stats else ()
        return Rollouts(tokens_RT, logprobs_RT, self.lengths_R, self.finished_R, version, *means)


class BufferedLayer(DynamicLayer):
    """Full attention in buffers that grow; the library's cache copies itself at every token."""

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Take (P, heads, tokens, width) keys and values."""
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._capacity = capacity
        self._keys, self._values = keys, values
        self._expose(keys.shape[-2])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
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

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        end = self._length
        self.keys = self.values = None
        self._keys = self._buffer(self._keys[beam_idx, :, :end], end + 1)
        self._values = self._buffer(self._values[beam_idx, :, :end], end + 1)
        self._expose(end)

    def _expose(self, length: int) -> tuple[Tensor, Tensor]:
        self._length = length
        self.keys, self.values = self._keys[:, :, :length], self._values[:, :, :length]
        return self.keys, self.values

    def _buffer(self, states: Tensor, needed: int) -> Tensor:
        rows, heads, length, width = states.shape
        size = max(needed, min(self._capacity, needed + max(BLOCK, needed // 2)))
        buffer = states.new_empty((rows, heads, size, width))
        buffer[:, :, :length] = states
        return buffer


def uniforms(
    n_prompts: int, n: int, width: int, max_rows: int, generator: torch.Generator
) -> tuple[Tensor, int]:
    """Draw (R, T) uniforms for all ranks, by the chunk; returns the rows of a chunk too."""
    rows, device = n_prompts * n, generator.device
    # Whole prompts where they fit, so that each is read once.
    chunk = max_rows // n * n or max_rows
    # One by one, since a GPU's draws depend on their number.
    sizes = [(min(chunk, rows - start), width) for start in range(0, rows, chunk)]
    return torch.cat([torch.rand(s, generator=generator, device=device) for s in sizes]), chunk


class TransformersEngine:
    """Samples with the trainer's own model, so it has new weights at once."""

    share = ALONE.share

    def __init__(
        self,
        model: Any,
        eos_token_ids: Sequence[int] = (),
        pad_token_id: int = 0,
        max_rows: int = 512,
        tokenizer: Any = None,
    ) -> None:
        """Take a model in evaluation mode, and its tokenizer where `Sampling.stop` needs it."""
        self.model = model
        self.version = 0
        self.eos_token_ids = [*eos_token_ids]
        self.pad_token_id = pad_token_id
        self.max_rows = max_rows
        self.progress: Callable[[], object] = lambda: None
        self.tokenizer = tokenizer
        parameters = inspect.signature(model.forward).parameters
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        n_weights = sum(weight.numel() for weight in model.parameters())
        self.shares_rows: bool = model.device.type == "cpu" and n_weights >= _SHARED_FROM

    @torch.no_grad()  # not inference_mode: its tensors could not enter a later backward pass
    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with log-probs before the cut at `top_p`."""
        check_prompts(prompts, n, sampling.max_tokens, max_positions(self.model))
        uniforms_RT, size = uniforms(len(prompts), n, sampling.max_tokens, self.max_rows, generator)
        part = shard_requests(len(prompts), n, self.share)
        # Prompts of like length share a batch: it has less padding, or none and needs no mask.
        order = sorted(range(len(part)), key=lambda row: len(prompts[part[row][0]]))
        parts: list[dict[str, Tensor]] = []
        with WideHead.constant(self.model):
            for start in range(0, len(order), size):
                pairs = [part[row] for row in order[start : start + size]]
                uniforms_BT = uniforms_RT[[p * n + i for p, i in pairs]]
                numbers = [p for p, _ in pairs]
                parts.append(self._sample_rows(prompts, numbers, uniforms_BT, sampling).packed())
        packed = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        joined = Rollouts.unpacked(packed, self.version, self.pad_token_id)
        return joined.arranged(torch.tensor(order).argsort(), n if self.share[1] == 1 else 1)

    def release(self) -> None:
        """Do nothing: the model is the trainer's."""

    @torch.no_grad()
    def update_weights(self, model: Any, version: int) -> Stages:
        """Name the weights; a model of its own gets those that are trained, gathered."""
        if model is not self.model:
            for trained, weight in zip(model.parameters(), self.model.parameters(), strict=True):
                if trained.requires_grad:
                    weight.copy_(whole_tensor(trained))
        self.version = version
        return {}

    def close(self) -> None:
        """Nothing to stop."""

    def _sample_rows(
        self, prompts: Prompts, numbers: list[int], uniforms_RT: Tensor, sampling: Sampling
    ) -> Rollouts:
        """Sample one chunk of R rows, of the prompts of these numbers."""
        device = self.model.device
        uniforms_TR = uniforms_RT.to(device).T.contiguous()
        place = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
        source_R = torch.tensor([place[number] for number in numbers], device=device)
        batch = _Batch(self, [prompts[number] for number in place], source_R, sampling.max_tokens)
        samples = Samples(self, len(numbers), sampling)
        for uniforms_R in uniforms_TR:
            self.progress()
            token_B = samples.draw(batch, uniforms_R)
            going_B = samples.going_on(token_B)
            if going_B is not None:
                token_B, batch.source_B = token_B[going_B], batch.source_B[going_B]
            if len(token_B) == 0 or samples.used == len(uniforms_TR):
                break
            batch.advance(token_B)
        return samples.rollouts(self.version)


class _Batch:
    """Rows being decoded: their cache, attention mask and next-token logits."""

    def __init__(
        self, engine: TransformersEngine, prompts: Prompts, source_B: Tensor, max_tokens: int
    ) -> None:
        """Read each prompt once; short prompts are padded on the left."""
        self.source_B = source_B
        """(B,) the row that each response goes on from."""
        self._engine = engine
        self.cache = DynamicCache(config=engine.model.config)
        self.length = max(map(len, prompts))
        capacity, device = self.length + max_tokens, engine.model.device
        pad = engine.pad_token_id
        ids = [[pad] * (self.length - len(prompt)) + [*prompt] for prompt in prompts]
        self.sizes_N = torch.tensor([len(prompt) for prompt in prompts], device=device)
        columns_L = torch.arange(capacity, device=device)
        mask_NL = (columns_L >= self.length - self.sizes_N[:, None]).long()
        positions_NL = (mask_NL[:, : self.length].cumsum(-1) - 1).clamp(min=0)
        # Equal lengths need no mask, and attention without a mask is faster.
        self.mask_NL = None if bool(mask_NL[:, 0].all()) else mask_NL
        self.logits_NA = self._forward(torch.tensor(ids, device=device), positions_NL)
        for i, layer in enumerate(self.cache.layers):
            # Other kinds than full attention (sliding windows, recurrent states) stay as they are.
            if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
                self.cache.layers[i] = BufferedLayer(layer.keys, layer.values, capacity)

    def advance(self, token_B: Tensor) -> None:
        """Append one token to every response and compute the logits of the next one."""
        if self._engine.shares_rows:
            pairs_2B = torch.stack([self.source_B, token_B])
            (parent_N, token_N), child_B = pairs_2B.unique(dim=1, return_inverse=True)
        else:
            parent_N, token_N = self.source_B, token_B
            child_B = torch.arange(len(token_B), device=token_B.device)
        n_rows = len(self.sizes_N)
        if len(parent_N) > _COMPACT_AT * n_rows and bool((parent_N.diff() > 0).all()):
            # No row has two children, and few have none: these go on for nothing.
            child_B = parent_N[child_B]
            token_N = token_N.new_zeros(n_rows).index_copy(0, parent_N, token_N)
        else:
            self.cache.reorder_cache(parent_N)
            self.sizes_N = self.sizes_N[parent_N]
            self.mask_NL = None if self.mask_NL is None else self.mask_NL[parent_N]
        self.source_B = child_B
        self.length += 1
        self.logits_NA = self._forward(token_N[:, None], self.sizes_N[:, None])
        self.sizes_N = self.sizes_N + 1

    def _forward(self, ids_NL: Tensor, positions_NL: Tensor) -> Tensor:
        engine, options = self._engine, {"past_key_values": self.cache, "use_cache": True}
        options["position_ids"] = positions_NL[:1]  # Bamba counts its own from 0 at every token
        if self.mask_NL is not None:
            options["attention_mask"] = self.mask_NL[:, : self.length]
            options["position_ids"] = positions_NL
        return engine.model(input_ids=ids_NL, **options, **engine.last_only).logits[:, -1]


def stated_request(
    max_rows: int,
    prompts: Prompts,
    n: int,
    sampling: Sampling,
    generator: torch.Generator,
    share: tuple[int, int],
) -> dict[str, Any]:
    """Return what an engine in another process draws the same from; moves the generator as far."""
    state = bytes(generator.get_state().tolist()).hex()
    uniforms(len(prompts), n, sampling.max_tokens, max_rows, generator)
    request = {"prompts": [*map(list, prompts)], "n": n, "sampling": asdict(sampling)}
    return {**request, "state": state, "share": share}
