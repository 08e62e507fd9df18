"""Samples from a Hugging Face causal language model, in the trainer's own process.

A batched decoding loop with a key-value cache. Each prompt is read once, its cache row copied n
times, and rows that ended leave the batch. Every row has its own uniforms, so which rows share a
batch decides nothing. Entropies are measured when a token is drawn, without a forward pass.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache, DynamicLayer

from real.engines.rollouts import Prompts, Rollouts, Sampling, Stages, check_prompts, shard_requests
from real.model.policy import WideHead, max_positions

_COMPACT_AT = 0.75
"""Ended rows leave the batch once the share of live rows falls to this; changes speed only."""
BLOCK = 256
"""Tokens by which a buffer grows at least."""


def draw(
    logits_BA: Tensor,
    uniforms_B: Tensor,
    temperature: float,
    top_p: float = 1.0,
    observe: Callable[[Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one token a row by inverting the cumulative distribution over A tokens.

    `uniforms_B` are in [0, 1). Only the smallest set of likeliest tokens with at least the mass
    `top_p` is drawn from. `observe` is called with the (B, A) log-probs at that temperature, and
    their exponentials, before that cut. Returns (B,) token ids and their log-probs before it.
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


class RunningStats:
    """Running sums of entropy and self-certainty of the tokens of R responses.

    Self-certainty is `KL(uniform || p) = -log A - mean log p` (Zhao et al., "Learning to Reason
    without External Rewards"), A the size of the vocabulary. An impossible token adds nothing to
    the entropy and makes the certainty infinite.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._size = rows, 1
        self._parts: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []

    def add(self, rows_B: Tensor, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Add the distributions of the next token of rows B, ended ones included, in nats.

        `rows_B` is the same object as long as no row leaves.
        """
        if not self._parts or self._parts[-1][0] is not rows_B:
            self._parts.append((rows_B, [], []))
        # Raised to a finite number, an impossible token's term is 0 and not NaN.
        finite_BA = logprobs_BA.clamp(min=torch.finfo(logprobs_BA.dtype).min)
        self._parts[-1][1].append(torch.linalg.vecdot(probs_BA, finite_BA))
        self._parts[-1][2].append(logprobs_BA.mean(-1))
        self._size = logprobs_BA.shape[-1]

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return (R,) float64 mean entropies and self-certainties of the first tokens, in nats."""
        device, start = lengths_R.device, 0
        sums_2R = torch.zeros((2, self._rows), dtype=torch.float64, device=device)
        for rows_B, expected, uniform in self._parts:
            step_N1 = torch.arange(start, start + len(expected), device=device)[:, None]
            values_2NB = torch.stack([*expected, *uniform]).unflatten(0, (2, -1))
            values_2NB = torch.where(step_N1 < lengths_R[rows_B], values_2NB, 0.0)
            sums_2R[:, rows_B] += values_2NB.sum(1, dtype=torch.float64)
            start += len(expected)
        entropy_R, certainty_R = -sums_2R / lengths_R
        return entropy_R, certainty_R - math.log(self._size)


class Samples:
    """Tokens drawn so far for all R rows, and the B rows that are still in the batch."""

    def __init__(self, engine: TransformersEngine, rows: int, sampling: Sampling) -> None:
        device, steps = engine.model.device, sampling.max_tokens
        self._engine, self._texts = engine, sampling.stop
        self.eos = torch.tensor(engine.eos_token_ids, device=device, dtype=torch.int64)
        self.may_end = len(self.eos) > 0 or len(sampling.stop) > 0
        self.tokens_TR = torch.full((steps, rows), engine.pad_token_id, device=device)
        self.logprobs_TR = torch.zeros((steps, rows), device=device)
        self.lengths_R = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished_R = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rows_B = torch.arange(rows, device=device)
        self.stats = RunningStats(rows) if sampling.stats else None
        self.used = 0

    def observe(self, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Add the distributions of the token that is recorded next, where they are asked for."""
        if self.stats is not None:
            self.stats.add(self.rows_B, logprobs_BA, probs_BA)

    def record(self, step: int, token_B: Tensor, logprob_B: Tensor) -> Tensor:
        """Write one token a row, padding where a row has ended; return (B,) rows that continue."""
        running_B = ~self.finished_R[self.rows_B]
        pad_token_id = self._engine.pad_token_id
        self.tokens_TR[step, self.rows_B] = torch.where(running_B, token_B, pad_token_id)
        self.logprobs_TR[step, self.rows_B] = torch.where(running_B, logprob_B, 0.0)
        self.lengths_R[self.rows_B] += running_B
        self.used = step + 1
        if not self.may_end:
            return running_B
        ends_B = (token_B[:, None] == self.eos).any(-1)
        if self._texts:
            # A token is a byte at least; two more, since the first ones may be cut characters.
            longest = max(len(text.encode()) for text in self._texts) + 2
            tokens_BT = self.tokens_TR[max(0, self.used - longest) : self.used, self.rows_B].T
            written = self._engine.tokenizer.batch_decode(tokens_BT, skip_special_tokens=True)
            found = [any(text in one for text in self._texts) for one in written]
            ends_B |= torch.tensor(found, device=ends_B.device)
        ends_B &= running_B
        self.finished_R[self.rows_B] |= ends_B
        return running_B & ~ends_B

    def rollouts(self, version: int) -> Rollouts:
        """Return the samples as (R, T) rollouts, not yet split into prompts and responses."""
        tokens_RT, logprobs_RT = self.tokens_TR[: self.used].T, self.logprobs_TR[: self.used].T
        means = self.stats.means(self.lengths_R) if self.stats else (None, None)
        return Rollouts(tokens_RT, logprobs_RT, self.lengths_R, self.finished_R, version, *means)


class BufferedLayer(DynamicLayer):
    """Full attention in buffers that grow; the library's cache copies itself at every token."""

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Take (P, heads, tokens, width) keys and values; `reorder_cache` must follow."""
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._capacity = capacity
        self._keys, self._values, self._length = keys, values, keys.shape[-2]

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


def chunk_rows(max_rows: int, n: int) -> int:
    """Return the rows of a chunk: whole prompts where they fit, so that each is read once."""
    return max_rows // n * n or max_rows


def uniforms(rows: int, width: int, chunk: int, generator: torch.Generator) -> Tensor:
    """Draw (R, T) uniforms for all ranks, by the chunk: a GPU's draws depend on their number."""
    sizes = [min(chunk, rows - start) for start in range(0, rows, chunk)]
    device = generator.device
    return torch.cat([torch.rand((n, width), generator=generator, device=device) for n in sizes])


class TransformersEngine:
    """Samples with the trainer's own model, so it has new weights at once."""

    queues = False

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

    @torch.no_grad()  # not inference_mode: its tensors could not enter a later backward pass
    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Sample `n` responses to each prompt, with log-probs before the cut at `top_p`.

        The generator advances by the same amount whatever is sampled. `share` is rank and number of
        ranks: with several only the responses dealt to this one are sampled, as (M, 1) ones with
        the draws they have among all.
        """
        check_prompts(prompts, n, sampling.max_tokens, max_positions(self.model))
        chunk = chunk_rows(self.max_rows, n)
        uniforms_RT = uniforms(len(prompts) * n, sampling.max_tokens, chunk, generator)
        part = shard_requests(len(prompts), n, share)
        # Prompts of like length share a batch: it has less padding, or none and needs no mask.
        order = sorted(range(len(part)), key=lambda row: len(prompts[part[row][0]]))
        rows = [part[row] for row in order]
        parts = []
        with WideHead.constant(self.model):
            for start in range(0, len(rows), chunk):
                pairs = rows[start : start + chunk]
                uniforms_BT = uniforms_RT[[p * n + i for p, i in pairs]]
                numbers = [p for p, _ in pairs]
                parts.append(self._sample_rows(prompts, numbers, uniforms_BT, sampling))
        places = torch.tensor(order).argsort()
        return _joined(parts, self.pad_token_id).arranged(places, n if share[1] == 1 else 1)

    def release(self) -> None:
        """Do nothing: the model is the trainer's."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Name the weights; the model has them already."""
        if model is not self.model:
            raise ValueError("the transformers engine samples with the model it was made with")
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
        batch = _Batch(self, [prompts[number] for number in place], sampling.max_tokens)
        batch.expand(torch.tensor([place[number] for number in numbers], device=device))
        samples = Samples(self, len(numbers), sampling)
        how = sampling.temperature, sampling.top_p
        for step, uniforms_R in enumerate(uniforms_TR):
            self.progress()
            uniforms_B = uniforms_R[samples.rows_B]
            token_B, logprob_B = draw(batch.logits_BA, uniforms_B, *how, samples.observe)
            running_B = samples.record(step, token_B, logprob_B)
            n_running = int(running_B.sum()) if samples.may_end else len(running_B)
            if n_running == 0 or step + 1 == len(uniforms_TR):
                break
            if n_running <= _COMPACT_AT * len(running_B):
                token_B = token_B[running_B]
                samples.rows_B = samples.rows_B[running_B]
                batch.keep(running_B.nonzero()[:, 0])
            batch.advance(token_B)
        return samples.rollouts(self.version)


class _Batch:
    """Rows being decoded: their cache, attention mask and next-token logits."""

    def __init__(self, engine: TransformersEngine, prompts: Prompts, max_tokens: int) -> None:
        """Read each prompt once; short prompts are padded on the left."""
        self.model, self.options = engine.model, engine.last_only
        self.cache = DynamicCache(config=self.model.config)
        self.length = max(map(len, prompts))
        self.capacity = self.length + max_tokens
        device = self.device = self.model.device
        pad = engine.pad_token_id
        ids = [[pad] * (self.length - len(prompt)) + [*prompt] for prompt in prompts]
        self.sizes_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.mask_BL: Tensor | None = None
        positions_BL = None
        # Equal lengths need no mask, and attention without a mask is faster.
        if any(len(prompt) != self.length for prompt in prompts):
            columns_L = torch.arange(self.capacity, device=device)
            self.mask_BL = (columns_L >= self.length - self.sizes_B[:, None]).long()
            positions_BL = (self.mask_BL[:, : self.length].cumsum(-1) - 1).clamp(min=0)
        self.logits_BA = self._forward(torch.tensor(ids, device=device), positions_BL)

    def expand(self, prompt_B: Tensor) -> None:
        """Make the batch one row for each sample, copies of the prompts' rows."""
        for i, layer in enumerate(self.cache.layers):
            # Other kinds than full attention (sliding windows, recurrent states) stay as they are.
            if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
                self.cache.layers[i] = BufferedLayer(layer.keys, layer.values, self.capacity)
        self.logits_BA = self.logits_BA[prompt_B]
        self.keep(prompt_B)

    def keep(self, rows_B: Tensor) -> None:
        """Keep these rows. The logits are left: `advance` must follow."""
        self.cache.reorder_cache(cast(torch.LongTensor, rows_B))
        self.sizes_B = self.sizes_B[rows_B]
        if self.mask_BL is not None:
            self.mask_BL = self.mask_BL[rows_B]

    def advance(self, token_B: Tensor) -> None:
        """Append one token to every row and compute the next token's logits."""
        self.length += 1
        self.logits_BA = self._forward(token_B[:, None], self.sizes_B[:, None])
        self.sizes_B = self.sizes_B + 1

    def _forward(self, ids_BL: Tensor, positions_BL: Tensor | None) -> Tensor:
        arguments = dict(self.options)
        if self.mask_BL is not None:
            arguments |= {
                "attention_mask": self.mask_BL[:, : self.length],
                "position_ids": positions_BL,
            }
        output = self.model(
            input_ids=ids_BL, past_key_values=self.cache, use_cache=True, **arguments
        )
        return output.logits[:, -1]


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
    uniforms(len(prompts) * n, sampling.max_tokens, chunk_rows(max_rows, n), generator)
    asked = {"prompts": [*map(list, prompts)], "n": n, "sampling": asdict(sampling)}
    return {**asked, "state": state, "share": share}


def _joined(parts: list[Rollouts], pad_token_id: int) -> Rollouts:
    """Join (R, T) rollouts of chunks of rows to (R, 1, T) ones."""
    longest = max(part.tokens_PNT.shape[-1] for part in parts)
    for part in parts:
        room = (0, longest - part.tokens_PNT.shape[-1])
        part.tokens_PNT = pad(part.tokens_PNT, room, value=pad_token_id)
        part.logprobs_PNT = pad(part.logprobs_PNT, room)
    named = {name: [getattr(part, name) for part in parts] for name in parts[0].tensors()}
    joined: dict[str, Any] = {name: torch.cat(tensors)[:, None] for name, tensors in named.items()}
    return replace(parts[0], **joined)
