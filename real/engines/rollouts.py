"""What engines take and give: settings, requests, rollouts, the protocol, and one engine a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core.config import Count, Positive, PositiveShare, check_fields
from lab.base.errors import UserError

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
    """The settings of a draw."""

    max_tokens: Count
    temperature: Positive = 1.0
    top_p: PositiveShare = 1.0
    """Nucleus mass in (0, 1]; below 1 for evaluation, since training ratios would be biased."""
    stats: bool = False
    """Ask for `Rollouts.entropy_PV` and `certainty_PV`, which vLLM leaves None."""
    logprobs: bool = True
    """Ask for `Rollouts.logprobs_PNT`; without, an engine may leave them NaN."""
    everywhere: bool = True
    """Give every rank the responses; else only the first, the others get none of their tokens."""
    stop: Sequence[str] = ()
    """A response also ends with the token that completes one of these texts in it."""

    def __post_init__(self) -> None:
        check_fields(self, error=UserError)


@dataclass(slots=True)
class Rollouts:
    """Samples of P prompts, N responses each (N is 64 votes or 4 evaluation samples), T tokens."""

    tokens_PNT: torch.Tensor
    """int64; the response without its prompt, an end token included; padding after it."""
    logprobs_PNT: torch.Tensor
    """float32; log-probs of tokens at the sampling temperature, 0 in padding, NaN if left out."""
    lengths_PN: torch.Tensor
    """int64; tokens of each response, its end token included."""
    finished_PN: torch.Tensor
    """bool; the response has an end token; False: cut at `max_tokens`."""
    version: int
    entropy_PV: torch.Tensor | None = None
    """(P, N) float64; mean over a response's tokens of the entropy of the next-token distribution
    at the sampling temperature, before a cut at `top_p`, in nats."""
    certainty_PV: torch.Tensor | None = None
    """(P, N) float64; the same mean of KL(uniform || next-token distribution)."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that there are, by the names of their fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}

    def mask_PNT(self) -> torch.Tensor:
        """Return a bool mask, True on the response's tokens and False on padding."""
        positions_T = torch.arange(self.tokens_PNT.shape[-1], device=self.tokens_PNT.device)
        return positions_T < self.lengths_PN[..., None]

    def to(self, device: torch.device | str) -> Rollouts:
        return self._each(lambda values: values.to(device))

    def part(self, start: int, end: int) -> Rollouts:
        """Return the rollouts of the prompts from `start` to `end`, as long as their longest."""
        some = self._each(lambda values: values[start:end])
        longest = int(some.lengths_PN.max())
        some.tokens_PNT = some.tokens_PNT[..., :longest]
        some.logprobs_PNT = some.logprobs_PNT[..., :longest]
        return some

    def arranged(self, rows_M: torch.Tensor, n: int) -> Rollouts:
        """Return the (M,) responses at these places, prompt by prompt, as prompts with `n` each."""
        last = self.lengths_PN.ndim - 1
        return self._each(
            lambda values: values.flatten(0, last)[rows_M.to(values.device)].unflatten(0, (-1, n))
        )

    def packed(self) -> dict[str, torch.Tensor]:
        """Return the rollouts as tensors by name, without padding and without their version."""
        inside_PNT = self.mask_PNT()
        packed = {name.partition("_")[0]: value for name, value in self.tensors().items()}
        packed["tokens"] = self.tokens_PNT[inside_PNT].int()
        packed["logprobs"] = self.logprobs_PNT[inside_PNT]
        return {name: value.contiguous() for name, value in packed.items()}

    @classmethod
    def unpacked(
        cls, packed: Mapping[str, torch.Tensor], version: int, pad_token_id: int = 0
    ) -> Rollouts:
        """Return the rollouts that `packed` made tensors of."""
        lengths_PN, finished_PN = packed["lengths"], packed["finished"]
        device = lengths_PN.device
        inside_PNT = torch.arange(int(lengths_PN.max()), device=device) < lengths_PN[..., None]
        tokens_PNT = torch.full(inside_PNT.shape, pad_token_id, device=device)
        tokens_PNT[inside_PNT] = packed["tokens"].long()
        logprobs_PNT = torch.zeros(inside_PNT.shape, device=device)
        logprobs_PNT[inside_PNT] = packed.get("logprobs", torch.tensor(torch.nan))
        stats = packed.get("entropy"), packed.get("certainty")
        return cls(tokens_PNT, logprobs_PNT, lengths_PN, finished_PN.bool(), version, *stats)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Rollouts:
        return replace(self, **{name: change(value) for name, value in self.tensors().items()})

    def of_version(self, version: int) -> Rollouts:
        """Return the rollouts, if they were drawn by that version of the weights."""
        if self.version != version:
            raise EngineError(
                f"rollouts: drawn by version {self.version} of the weights in place of {version}; "
                "call update_weights after every change of the weights"
            )
        return self


class Engine(Protocol):
    """An engine; a step of training is `sample`, `release`, the update, `update_weights`."""

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample `n` responses to each prompt, on any device; the generator decides all of them."""

    def release(self) -> None:
        """Free memory for an update; `update_weights` must follow before the next sample."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Take over the model's weights and name them `version`; returns the time it took."""

    def close(self) -> None:
        """Stop for good; may be called twice."""


def check_prompts(prompts: Prompts, n: int, new_tokens: int, positions: int | None) -> None:
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


def shard_requests(n_prompts: int, n: int, share: tuple[int, int]) -> list[tuple[int, int]]:
    """Return prompt and number of the responses of a rank, given its number and theirs."""
    # Some to each prompt, so that no rank waits alone for the longest ones.
    rank, world = share
    return [(p, i) for p in range(n_prompts) for i in range((rank - p) % world, n, world)]


def request_seeds(generator: torch.Generator, n_prompts: int, n: int) -> list[int]:
    """Return one seed per prompt, `n` apart, by one draw of the generator."""
    # vLLM draws response i with the seed plus i: closer ones would share random numbers.
    first = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return [int(first) + prompt * n for prompt in range(n_prompts)]


def seeded_request(
    prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator, share: tuple[int, int]
) -> dict[str, Any]:
    """Return what a vLLM engine in another process needs to sample a rank's `share`."""
    rows, seeds = [*map(list, prompts)], request_seeds(generator, len(prompts), n)
    if share[1] > 1:
        part = shard_requests(len(rows), n, share)
        rows, seeds, n = [rows[p] for p, _ in part], [seeds[p] + i for p, i in part], 1
    return {"prompts": rows, "n": n, "seeds": seeds, "sampling": asdict(sampling)}


def request_params(
    n: int, sampling: Sampling, seed: int, eos_token_ids: Sequence[int]
) -> dict[str, Any]:
    """Return vLLM's `SamplingParams` of one prompt; the i-th response has that seed plus i."""
    # Special tokens stay in the text, since a stop text may be one.
    search = {"include_stop_str_in_output": True, "skip_special_tokens": False}
    return {
        "n": n,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        # Of the sampled token alone. Without any vLLM may take a faster sampler.
        "logprobs": 0 if sampling.logprobs else None,
        # Only a search for texts needs the text.
        "detokenize": bool(sampling.stop),
        "ignore_eos": True,
        "stop_token_ids": [*eos_token_ids],
        **({"stop": [*sampling.stop], **search} if sampling.stop else {}),
    }


class SampledResponse(NamedTuple):
    """One sampled response, as vLLM gives it."""

    tokens: Sequence[int] | NDArray[np.integer]
    """At least one; the end token is the last."""
    logprobs: Sequence[float] | NDArray[np.floating] | None
    ended_by: str
    versions: Set[str]
    """Names of the weights that drew it."""


def to_rollouts(
    responses_PN: Sequence[Sequence[SampledResponse]],
    n: int,
    pad_token_id: int,
    version: int,
    who: str = "engine",
    hint: str = "",
) -> Rollouts:
    """Return responses as tensors, padded on the right; `who` and `hint` are parts of messages.

    An EngineError unless there are `n` to a prompt, drawn by that version of the weights.
    """
    for prompt, row in enumerate(responses_PN, start=1):
        for response in row:
            if response.versions != {str(version)}:
                named = ", ".join(sorted(response.versions)) or "none"
                raise EngineError(
                    f"{who}: a response was drawn by version {named} of the weights instead of "
                    f"{version}{hint}"
                )
            if response.ended_by not in ("stop", "length"):
                raise EngineDied(f"{who}: a response ended by {response.ended_by!r}")
            n_tokens, logprobs = len(response.tokens), response.logprobs
            n_logprobs = n_tokens if logprobs is None else len(logprobs)
            if not n_tokens or n_tokens != n_logprobs:
                raise EngineError(
                    f"engine: a response to prompt {prompt} has {n_tokens} tokens and "
                    f"{n_logprobs} log-probs; there must be one for each token"
                )
        if len(row) != n:
            raise EngineError(
                f"engine: {len(row)} responses to prompt {prompt} where {n} were asked for"
            )
    flat = [response for row in responses_PN for response in row]
    packed = {
        "tokens": torch.from_numpy(np.concatenate([r.tokens for r in flat])),
        "lengths": torch.tensor([len(r.tokens) for r in flat]).view(-1, n),
        "finished": torch.tensor([r.ended_by == "stop" for r in flat]).view(-1, n),
    }
    logprobs = [r.logprobs for r in flat if r.logprobs is not None]
    if len(logprobs) == len(flat):
        packed["logprobs"] = torch.from_numpy(np.concatenate(logprobs).astype(np.float32))
    return Rollouts.unpacked(packed, version, pad_token_id)
