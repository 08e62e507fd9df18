"""Rollouts: an engine turns prompts into sampled responses with their log-probs.

This is all that the trainer knows of engines; they themselves are in `real.engines`. An engine
that holds a copy of the weights tells with every sample which version of them made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lab.errors import UserError
from real.engines.rollout_checks import check_sampling

Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt, of any lengths."""


class EngineError(UserError):
    """An engine failed, or answered with what was not asked for; the message is one line."""


class EngineDied(EngineError):
    """An engine died or hung: another one may be started in its place."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn.

    Raises:
        UserError: a value is out of its range.
    """

    max_tokens: int
    """Longest response, its end token included."""
    temperature: float = 1.0
    """Divides the logits; above 0."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]; below 1 for evaluation, since training ratios would be biased."""
    stats: bool = False
    """Ask for `Rollouts.entropy_PV` and `certainty_PV`. Engines that cannot tell (a vLLM server)
    leave them None: `real.vote.observations.token_stats` computes them with a forward pass of its
    own."""

    def __post_init__(self) -> None:
        """Check every setting."""
        check_sampling(self.max_tokens, self.temperature, self.top_p)


@dataclass(slots=True)
class Rollouts:
    """Samples of P prompts, N responses each (N is 64 votes or 4 evaluation samples), T tokens."""

    tokens_PNT: torch.Tensor
    """int64; the response without its prompt, an end token included; padding after it."""
    logprobs_PNT: torch.Tensor
    """float32; log-prob of each sampled token at the sampling temperature, 0 in padding."""
    lengths_PN: torch.Tensor
    """int64; tokens of each response, its end token included."""
    finished_PN: torch.Tensor
    """bool; the response has an end token; False: cut at `max_tokens`."""
    version: int
    """Of the weights that drew every one of these tokens."""
    entropy_PV: torch.Tensor | None = None
    """(P, N) float64; mean over a response's tokens of the entropy of the next-token distribution
    at the sampling temperature, before a cut at `top_p`, in nats."""
    certainty_PV: torch.Tensor | None = None
    """(P, N) float64; the same mean of KL(uniform || next-token distribution)."""

    def mask_PNT(self) -> torch.Tensor:
        """Bool; True on the response's tokens, False on padding."""
        places_T = torch.arange(self.tokens_PNT.shape[-1], device=self.tokens_PNT.device)
        return places_T < self.lengths_PN[..., None]

    def to(self, device: torch.device | str) -> Rollouts:
        """The same on another device."""
        return Rollouts(
            self.tokens_PNT.to(device),
            self.logprobs_PNT.to(device),
            self.lengths_PN.to(device),
            self.finished_PN.to(device),
            self.version,
            self.entropy_PV if self.entropy_PV is None else self.entropy_PV.to(device),
            self.certainty_PV if self.certainty_PV is None else self.certainty_PV.to(device),
        )

    def of_version(self, version: int) -> Rollouts:
        """These rollouts, if they were drawn by that version of the weights.

        Raises:
            EngineError: they were drawn by another one.
        """
        if self.version != version:
            raise EngineError(
                f"rollouts: drawn by version {self.version} of the weights, the trainer is at "
                f"{version}; call update_weights after every change of the weights"
            )
        return self


class Engine(Protocol):
    """What the trainer knows of an engine.

    One step of training is `sample`, `release`, the update, `update_weights`.
    """

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt; the generator decides all of them."""
        ...

    def release(self) -> None:
        """Give up memory for an update; `update_weights` must follow before the next sample."""
        ...

    def update_weights(self, model: Any, version: int) -> None:
        """Take over the model's weights and name them `version`."""
        ...

    def close(self) -> None:
        """Stop for good; may be called twice."""
        ...
