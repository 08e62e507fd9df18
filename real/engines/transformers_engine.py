"""Samples from a Hugging Face causal language model, in the trainer's own process.

A batched decoding loop with a key-value cache. Each prompt is read once, its cache row copied n
times, and rows that ended leave the batch. Every row has its own uniforms, so which rows share a
batch decides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from real.engines.decoding import (
    Samples,
    StopTexts,
    chunk_rows,
    draw,
    expand_cache,
    join,
    new_cache,
    select_rows,
    uniforms,
)
from real.engines.requests import check_prompts, check_rows, dealt
from real.engines.rollouts import Prompts, Rollouts, Sampling, Stages
from real.model.policy import max_positions


class TransformersEngine:
    """Samples with the trainer's own model, so it has new weights at once."""

    queues = False

    def __init__(
        self,
        model: Any,
        eos_token_ids: Sequence[int] | int = (),
        pad_token_id: int = 0,
        max_rows: int = 512,
        compact_at: float = 0.75,
        tokenizer: Any = None,
    ) -> None:
        """Set up the engine.

        Args:
            model: a causal language model; left in the mode (training or not) it is found in.
            eos_token_ids: token ids that end a response; without any all run to `max_tokens`.
            pad_token_id: fills short prompts and the positions after a response's end.
            max_rows: most responses alive at once; bounds the cache's memory.
            compact_at: ended rows leave the batch once the share of live rows falls to this; 0
                keeps them. Changes speed only.
            tokenizer: of the model; needed for `Sampling.stop` alone.

        Raises:
            UserError: a value is out of its range.
        """
        check_rows(max_rows)
        self.model = model
        self.version = 0
        self.eos_token_ids = [eos_token_ids] if isinstance(eos_token_ids, int) else [*eos_token_ids]
        self.pad_token_id = pad_token_id
        self.max_rows = max_rows
        self.compact_at = compact_at
        self.progress: Callable[[], object] = lambda: None
        """Called at every token."""
        self._tokenizer = tokenizer
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
        """Sample `n` responses to each prompt.

        Args:
            prompts: (P,) token ids of each prompt, of any lengths.
            n: responses a prompt.
            sampling: how they are drawn; the log-probs are those before the cut at `top_p`.
            generator: source of all randomness, on any device; advanced by the same amount
                whatever is sampled.
            share: rank and number of ranks. With several ranks only the responses `dealt` to this
                one are sampled, with the random numbers that they have among all.

        Returns:
            The responses on the model's device; T is the longest response's length. With several
            ranks as (M, 1) responses, M those of this rank.

        Raises:
            UserError: no prompt, an empty one, or one that leaves no room for `max_tokens`.
        """
        check_prompts(prompts, n, sampling.max_tokens, max_positions(self.model))
        chunk = chunk_rows(self.max_rows, n)
        uniforms_RT = uniforms(len(prompts) * n, sampling.max_tokens, chunk, generator)
        part = dealt(len(prompts), n, share)
        # Prompts of like length share a batch: it has less padding, or none and needs no mask.
        order = sorted(range(len(part)), key=lambda row: len(prompts[part[row][0]]))
        rows = [part[row] for row in order]
        parts = []
        with _evaluating(self.model):
            for start in range(0, len(rows), chunk):
                pairs = rows[start : start + chunk]
                uniforms_BT = uniforms_RT[[p * n + i for p, i in pairs]]
                batch = [prompts[p] for p, _ in pairs]
                parts.append(self._sample_rows(batch, [p for p, _ in pairs], uniforms_BT, sampling))
        places = torch.tensor(order).argsort()
        joined = join(parts, len(rows), 1, self.pad_token_id)
        return joined.arranged(places, n if share[1] == 1 else 1)

    def release(self) -> None:
        """Do nothing: the model is the trainer's."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Name the weights; the model has them already.

        Raises:
            ValueError: the model is another one than this engine samples with.
        """
        if model is not self.model:
            raise ValueError("the transformers engine samples with the model it was made with")
        self.version = version
        return {}

    def close(self) -> None:
        """Nothing to stop."""

    def _sample_rows(
        self,
        prompts: Prompts,
        prompt_of_row: list[int],
        uniforms_RT: torch.Tensor,
        sampling: Sampling,
    ) -> Rollouts:
        """Sample one chunk of rows, of which those with one number have one prompt."""
        device = self.model.device
        uniforms_TR = uniforms_RT.to(device).T.contiguous()
        read = dict(zip(prompt_of_row, prompts, strict=True))
        place = {number: place for place, number in enumerate(read)}
        batch = _Batch(self, [*read.values()], sampling.max_tokens)
        batch.expand(torch.tensor([place[number] for number in prompt_of_row], device=device))
        return self._decode(batch, uniforms_TR, sampling)

    def _decode(self, batch: _Batch, uniforms_TR: torch.Tensor, sampling: Sampling) -> Rollouts:
        steps, rows = uniforms_TR.shape
        stop = StopTexts(self._tokenizer, sampling.stop) if sampling.stop else None
        samples = Samples(steps, rows, self.pad_token_id, self.eos_token_ids, batch.device, stop)
        observe = samples.observe if sampling.stats else None
        for step, uniforms_R in enumerate(uniforms_TR):
            self.progress()
            uniforms_B = uniforms_R[samples.rows_B]
            token_B, logprob_B = draw(
                batch.logits_BA, uniforms_B, sampling.temperature, sampling.top_p, observe
            )
            running_B = samples.record(step, token_B, logprob_B)
            n_running = int(running_B.sum()) if samples.may_end else len(running_B)
            if n_running == 0 or step + 1 == steps:
                break
            if n_running <= self.compact_at * len(running_B):
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
        self.cache = new_cache(self.model.config)
        self.length = max(map(len, prompts))
        self.capacity = self.length + max_tokens
        device = self.device = self.model.device
        pad = engine.pad_token_id
        ids = [[pad] * (self.length - len(prompt)) + [*prompt] for prompt in prompts]
        self.sizes_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.mask_BL: torch.Tensor | None = None
        positions_BL = None
        # Equal lengths need no mask, and attention without a mask is faster.
        if any(len(prompt) != self.length for prompt in prompts):
            columns_L = torch.arange(self.capacity, device=device)
            self.mask_BL = (columns_L >= self.length - self.sizes_B[:, None]).long()
            positions_BL = (self.mask_BL[:, : self.length].cumsum(-1) - 1).clamp(min=0)
        self.logits_BA = self._forward(torch.tensor(ids, device=device), positions_BL)

    def expand(self, prompt_B: torch.Tensor) -> None:
        """Make the batch one row for each sample, copies of the prompts' rows."""
        expand_cache(self.cache, prompt_B, self.capacity)
        self.logits_BA = self.logits_BA[prompt_B]
        self._select(prompt_B)

    def keep(self, rows_B: torch.Tensor) -> None:
        """Keep these rows. The logits are left: `advance` must follow."""
        select_rows(self.cache, rows_B)
        self._select(rows_B)

    def _select(self, rows_B: torch.Tensor) -> None:
        self.sizes_B = self.sizes_B[rows_B]
        if self.mask_BL is not None:
            self.mask_BL = self.mask_BL[rows_B]

    def advance(self, token_B: torch.Tensor) -> None:
        """Append one token to every row and compute the next token's logits."""
        self.length += 1
        self.logits_BA = self._forward(token_B[:, None], self.sizes_B[:, None])
        self.sizes_B = self.sizes_B + 1

    def _forward(self, ids_BL: torch.Tensor, positions_BL: torch.Tensor | None) -> torch.Tensor:
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
    """Return what a `TransformersEngine` in another process needs to draw what one here would draw.

    Args:
        max_rows: of that engine.
        prompts: as for `TransformersEngine.sample`.
        n: as there.
        sampling: as there.
        generator: its state is sent, and it moves as far as it would here.
        share: as there.
    """
    state = bytes(generator.get_state().tolist()).hex()
    uniforms(len(prompts) * n, sampling.max_tokens, chunk_rows(max_rows, n), generator)
    asked = {"prompts": [*map(list, prompts)], "n": n, "sampling": asdict(sampling)}
    return {**asked, "state": state, "share": share}


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
