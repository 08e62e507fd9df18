"""Requests to an engine and its responses: checks, shares of ranks, seeds, and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lab.errors import UserError
from real.engines.rollouts import EngineError, Prompts, Rollouts, Sampling


def check_rows(max_rows: int) -> None:
    """Raise a UserError if no response could be alive at once."""
    if max_rows < 1:
        raise UserError(f"max_rows: {max_rows} is below 1, allow at least one response at once")


def check_prompts(
    prompts: Sequence[Sequence[int]], n: int, new_tokens: int, positions: int | None
) -> None:
    """Raise a UserError for prompts that cannot be continued by `new_tokens` tokens."""
    if not prompts:
        raise UserError("prompts: none given, sample at least one")
    if n < 1:
        raise UserError(f"samples per prompt: {n} is below 1, sample at least one response")
    for number, prompt in enumerate(prompts, start=1):
        if not len(prompt):
            raise UserError(
                f"prompt {number}: no tokens, check the tokenizer and the problem's text"
            )
        if positions is not None and len(prompt) + new_tokens > positions:
            raise UserError(
                f"prompt {number}: {len(prompt)} tokens and {new_tokens} new ones exceed the "
                f"model's {positions} positions, lower max_tokens or drop the problem"
            )


def dealt(n_prompts: int, n: int, share: tuple[int, int]) -> list[tuple[int, int]]:
    """Return prompt and number of the responses that one rank samples, prompt by prompt.

    Every rank gets some responses to each prompt, so that none waits alone for the longest ones.

    Args:
        n_prompts: P.
        n: responses to each prompt.
        share: rank and number of ranks.
    """
    rank, world = share
    return [(p, i) for p in range(n_prompts) for i in range((rank - p) % world, n, world)]


_SEEDS = 2**62


def request_seeds(generator: torch.Generator, n_prompts: int, n: int) -> list[int]:
    """Return one seed per prompt, `n` apart.

    vLLM draws the i-th response to a prompt with `seed + i`, so prompts whose seeds are closer
    than `n` would share random numbers, and their votes would be correlated.

    Args:
        generator: advanced by one draw, whatever the numbers.
        n_prompts: number of prompts.
        n: responses to each prompt.
    """
    first = torch.randint(_SEEDS, (1,), generator=generator, device=generator.device)
    return [int(first) + prompt * n for prompt in range(n_prompts)]


def seeded_request(
    prompts: Prompts,
    n: int,
    sampling: Sampling,
    generator: torch.Generator,
    share: tuple[int, int],
) -> dict[str, Any]:
    """Return what a vLLM engine in another process needs to sample; see `Shareable`."""
    asked, seeds = [*map(list, prompts)], request_seeds(generator, len(prompts), n)
    if share[1] > 1:
        part = dealt(len(asked), n, share)
        asked, seeds, n = [asked[p] for p, _ in part], [seeds[p] + i for p, i in part], 1
    return {"prompts": asked, "n": n, "seeds": seeds, "sampling": asdict(sampling)}


def request_params(
    n: int, sampling: Sampling, seed: int, eos_token_ids: Sequence[int]
) -> dict[str, Any]:
    """Return vLLM's `SamplingParams` of one prompt, for the library and for the server.

    Args:
        n: responses.
        sampling: how they are drawn.
        seed: of the first response; the others' follow it.
        eos_token_ids: the tokens that end a response, in place of those of the model's files.
    """
    # Only a search for texts needs the text.
    texts = {"stop": [*sampling.stop], "include_stop_str_in_output": True} if sampling.stop else {}
    return {
        "n": n,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        # Of the sampled token alone. Without any vLLM may take a faster sampler.
        "logprobs": 0 if sampling.logprobs else None,
        "detokenize": bool(texts),
        "ignore_eos": True,
        "stop_token_ids": [*eos_token_ids],
        **texts,
    }


class Response(NamedTuple):
    """One sampled response."""

    tokens: Sequence[int] | NDArray[np.integer]
    """At least one; the end token is the last."""
    logprobs: Sequence[float] | NDArray[np.floating] | None
    """One per token; None if they were not asked for."""
    finished: bool
    """False: cut at `max_tokens`."""


def to_rollouts(
    responses_PN: Sequence[Sequence[Response]],
    n: int,
    pad_token_id: int,
    version: int,
) -> Rollouts:
    """Return responses as tensors, padded on the right.

    Args:
        responses_PN: N responses to each of P prompts.
        n: N, the number that was requested.
        pad_token_id: fills the positions after a response's end.
        version: of the weights that drew the responses.

    Raises:
        EngineError: the engine did not give what was requested.
    """
    _check(responses_PN, n)
    flat = [response for row in responses_PN for response in row]
    lengths = torch.tensor([len(response.tokens) for response in flat])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.full(inside.shape, pad_token_id, dtype=torch.int64)
    tokens[inside] = torch.from_numpy(np.concatenate([r.tokens for r in flat]).astype(np.int64))
    logprobs = torch.where(inside, torch.nan, torch.zeros(()))
    if all(response.logprobs is not None for response in flat):
        found = np.concatenate([r.logprobs for r in flat if r.logprobs is not None])
        logprobs[inside] = torch.from_numpy(found.astype(np.float32))
    shape = (len(responses_PN), n)
    return Rollouts(
        tokens.view(*shape, -1),
        logprobs.view(*shape, -1),
        lengths.view(shape),
        torch.tensor([r.finished for r in flat]).view(shape),
        version,
    )


def _check(responses_PN: Sequence[Sequence[Response]], n: int) -> None:
    for prompt, row in enumerate(responses_PN, start=1):
        if len(row) != n:
            raise EngineError(
                f"engine: {len(row)} responses to prompt {prompt} where {n} were asked for"
            )
        for response in row:
            n_tokens, logprobs = len(response.tokens), response.logprobs
            n_logprobs = n_tokens if logprobs is None else len(logprobs)
            if not n_tokens or n_tokens != n_logprobs:
                raise EngineError(
                    f"engine: a response to prompt {prompt} has {n_tokens} tokens and "
                    f"{n_logprobs} log-probs; there must be one for each token"
                )
