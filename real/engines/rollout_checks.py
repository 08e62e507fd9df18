"""What a rollout engine refuses, each in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.errors import UserError


def positions(model: Any) -> int | None:
    """Most tokens that the model has positions for; None where its config names no bound."""
    config = model.config
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text_config, "max_position_embeddings", None)


def check_sampling(max_tokens: int, temperature: float, top_p: float) -> None:
    """Raise a UserError for a sampling setting out of its range."""
    if max_tokens < 1:
        raise UserError(f"max_tokens: {max_tokens} is below 1, ask for at least one token")
    if not 0 < temperature < float("inf"):
        raise UserError(
            f"temperature: {temperature} cannot be sampled at, use a finite number above 0"
        )
    if not 0 < top_p <= 1:
        raise UserError(f"top_p: {top_p} is outside (0, 1], use 1 to sample from all tokens")


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
    for place, prompt in enumerate(prompts, start=1):
        if not len(prompt):
            raise UserError(
                f"prompt {place}: no tokens, check the tokenizer and the problem's text"
            )
        if positions is not None and len(prompt) + new_tokens > positions:
            raise UserError(
                f"prompt {place}: {len(prompt)} tokens and {new_tokens} new ones exceed the "
                f"model's {positions} positions, lower max_tokens or drop the problem"
            )
