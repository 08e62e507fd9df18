"""What an engine that answers in lists gives back, as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch

from real.engines.rollouts import EngineError, Rollouts


class Response(NamedTuple):
    """One sampled response."""

    tokens: Sequence[int]
    """At least one; the end token is the last."""
    logprobs: Sequence[float]
    """One per token."""
    finished: bool
    """False: cut at `max_tokens`."""


def to_rollouts(
    responses_PN: Sequence[Sequence[Response]],
    n: int,
    pad_token_id: int,
    version: int,
    device: torch.device | str = "cpu",
) -> Rollouts:
    """Pad responses on the right.

    Args:
        responses_PN: N responses to each of P prompts.
        n: N, what was asked for.
        pad_token_id: fills the places after a response's end.
        version: of the weights that drew them.
        device: of the result.

    Raises:
        EngineError: the engine gave something else than was asked for.
    """
    _check(responses_PN, n)
    flat = [response for row in responses_PN for response in row]
    lengths = torch.tensor([len(response.tokens) for response in flat])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.full(inside.shape, pad_token_id, dtype=torch.int64)
    tokens[inside] = torch.tensor(list(chain.from_iterable(r.tokens for r in flat)))
    logprobs = torch.zeros(inside.shape)
    logprobs[inside] = torch.tensor(list(chain.from_iterable(r.logprobs for r in flat)))
    shape = (len(responses_PN), n)
    return Rollouts(
        tokens.view(*shape, -1).to(device),
        logprobs.view(*shape, -1).to(device),
        lengths.view(shape).to(device),
        torch.tensor([r.finished for r in flat]).view(shape).to(device),
        version,
    )


def _check(responses_PN: Sequence[Sequence[Response]], n: int) -> None:
    for prompt, row in enumerate(responses_PN, start=1):
        if len(row) != n:
            raise EngineError(
                f"engine: {len(row)} responses to prompt {prompt} where {n} were asked for"
            )
        for response in row:
            if not response.tokens or len(response.tokens) != len(response.logprobs):
                raise EngineError(
                    f"engine: a response to prompt {prompt} has {len(response.tokens)} tokens and "
                    f"{len(response.logprobs)} log-probs; there must be one for each token"
                )
