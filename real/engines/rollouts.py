"""Rollouts: the responses that an engine samples, with their log-probs; and the engine's interface.

This is all that the trainer knows of engines. An engine that holds a copy of the weights returns
their version with every sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lab.errors import UserError

Stages = dict[str, float]
"""Seconds of the stages of an update of an engine's weights, by column of the steps."""

Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt, of any lengths."""


class EngineError(UserError):
    """An engine failed, or gave a wrong answer; the message is one line."""


class EngineDied(EngineError):
    """An engine died or hung; another one may be started in its place."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of a draw.

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
    """Ask for `Rollouts.entropy_PV` and `certainty_PV`. A vLLM server leaves them
    None; the observations then take a forward pass of the trainer."""
    logprobs: bool = True
    """Ask for `Rollouts.logprobs_PNT`; without, an engine may leave them NaN."""
    stop: Sequence[str] = ()
    """A response also ends with the token that completes one of these texts in it."""

    def __post_init__(self) -> None:
        """Check every setting."""
        check_sampling(self.max_tokens, self.temperature, self.top_p)


@dataclass(slots=True)
class Rollouts:
    """Samples of P prompts, N responses each (N is 64 votes or 4 evaluation samples), T tokens."""

    tokens_PNT: torch.Tensor
    """int64; the response without its prompt, an end token included; padding after it."""
    logprobs_PNT: torch.Tensor
    """float32; log-prob of each sampled token at the sampling temperature, 0 in padding; NaN where
    the engine was not asked for them and left them out."""
    lengths_PN: torch.Tensor
    """int64; tokens of each response, its end token included."""
    finished_PN: torch.Tensor
    """bool; the response has an end token; False: cut at `max_tokens`."""
    version: int
    """Version of the weights that drew all of these tokens."""
    entropy_PV: torch.Tensor | None = None
    """(P, N) float64; mean over a response's tokens of the entropy of the next-token distribution
    at the sampling temperature, before a cut at `top_p`, in nats."""
    certainty_PV: torch.Tensor | None = None
    """(P, N) float64; the same mean of KL(uniform || next-token distribution)."""

    def mask_PNT(self) -> torch.Tensor:
        """Return a bool mask, True on the response's tokens and False on padding."""
        positions_T = torch.arange(self.tokens_PNT.shape[-1], device=self.tokens_PNT.device)
        return positions_T < self.lengths_PN[..., None]

    def to(self, device: torch.device | str) -> Rollouts:
        """Return the rollouts on another device."""
        return self._each(lambda values: values.to(device))

    def part(self, start: int, end: int) -> Rollouts:
        """Return the rollouts of the prompts from `start` to `end`, as long as their longest."""
        some = self._each(lambda values: values[start:end])
        longest = int(some.lengths_PN.max())
        some.tokens_PNT = some.tokens_PNT[..., :longest]
        some.logprobs_PNT = some.logprobs_PNT[..., :longest]
        return some

    def arranged(self, rows_M: torch.Tensor, n: int) -> Rollouts:
        """Return some of the P x N responses, by their places, as those of prompts with `n` each.

        Args:
            rows_M: (M,) places among all responses, prompt by prompt.
            n: of the result; M is a multiple of it.
        """
        return self._each(
            lambda values: values.flatten(0, 1)[rows_M.to(values.device)].unflatten(0, (-1, n))
        )

    def packed(self) -> dict[str, torch.Tensor]:
        """Return the rollouts as tensors by name, without padding and without their version."""
        inside_PNT = self.mask_PNT()
        fields = {
            "tokens": self.tokens_PNT[inside_PNT].int(),
            "logprobs": self.logprobs_PNT[inside_PNT],
            "lengths": self.lengths_PN,
            "finished": self.finished_PN,
            "entropy": self.entropy_PV,
            "certainty": self.certainty_PV,
        }
        return {name: field.contiguous() for name, field in fields.items() if field is not None}

    @classmethod
    def unpacked(
        cls, fields: Mapping[str, torch.Tensor], version: int, pad_token_id: int = 0
    ) -> Rollouts:
        """Return the rollouts that `packed` made tensors of.

        Args:
            fields: from `packed`.
            version: of the weights that drew them.
            pad_token_id: fills the positions after a response's end.
        """
        lengths_PN = fields["lengths"]
        inside_PNT = torch.arange(int(lengths_PN.max())) < lengths_PN[..., None]
        tokens_PNT = torch.full(inside_PNT.shape, pad_token_id)
        tokens_PNT[inside_PNT] = fields["tokens"].long()
        logprobs_PNT = torch.zeros(inside_PNT.shape)
        logprobs_PNT[inside_PNT] = fields["logprobs"]
        return cls(
            tokens_PNT,
            logprobs_PNT,
            lengths_PN,
            fields["finished"],
            version,
            fields.get("entropy"),
            fields.get("certainty"),
        )

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Rollouts:
        """Return rollouts of the same version with every tensor changed."""
        return Rollouts(
            change(self.tokens_PNT),
            change(self.logprobs_PNT),
            change(self.lengths_PN),
            change(self.finished_PN),
            self.version,
            None if self.entropy_PV is None else change(self.entropy_PV),
            None if self.certainty_PV is None else change(self.certainty_PV),
        )

    def of_version(self, version: int) -> Rollouts:
        """Return the rollouts, if they were drawn by that version of the weights.

        Raises:
            EngineError: they were drawn by another one.
        """
        if self.version != version:
            raise EngineError(
                f"rollouts: drawn by version {self.version} of the weights in place of {version}; "
                "call update_weights after every change of the weights"
            )
        return self


class Engine(Protocol):
    """The interface of an engine.

    One step of training is `sample`, `release`, the update, `update_weights`.
    """

    @property
    def queues(self) -> bool:
        """The engine queues requests for itself, so that it is best given all prompts at once."""
        ...

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, on any device; the generator decides all of them."""
        ...

    def release(self) -> None:
        """Free memory for an update; `update_weights` must follow before the next sample."""
        ...

    def update_weights(self, model: Any, version: int) -> Stages:
        """Take over the model's weights and name them `version`; returns the time it took."""
        ...

    def close(self) -> None:
        """Stop for good; may be called twice."""
        ...


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
