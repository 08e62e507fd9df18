"""Sampling of responses, each batch with random numbers of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from real.engines.rollouts import Engine, Sampling
from real.model.memory import in_phase
from real.model.policy import Policy
from real.problems.problem import PromptSet
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, torch_generator
from real.vote.read import Responses

LONG = 2 * 3600.0
"""Seconds of sampling from which on a notice gives the estimate."""
_TRIAL = 8
"""Tokens of the longer trial."""
_SMALL = {"n_votes": 16, "n_samples": 16, "max_response_tokens": 256}
"""Settings of a run on a small machine."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples responses, each batch with random numbers of its own."""

    engine: Engine
    policy: Policy
    seed: int
    """Seed of the run."""

    def sample(
        self,
        problems: Sequence[int],
        prompts: Sequence[list[int]],
        n: int,
        sampling: Sampling,
        version: int,
        generator: torch.Generator,
    ) -> Responses:
        """Sample `n` responses to each prompt.

        Args:
            problems: (P,) index of each prompt's problem.
            prompts: (P,) token ids.
            n: responses per prompt.
            sampling: how they are drawn.
            version: of the weights that the engine must hold.
            generator: decides all of them; see `generator`.

        Raises:
            EngineError: the engine failed, or holds other weights.
        """
        rollouts = self.engine.sample(prompts, n, sampling, generator).of_version(version)
        return Responses(problems, prompts, rollouts.to(self.policy.device), self.policy)

    def sample_all(
        self,
        prompts: PromptSet,
        n: int,
        sampling: Sampling,
        version: int,
        generator: torch.Generator,
        max_rows: int,
    ) -> Iterator[Responses]:
        """Sample `n` responses to every problem; yield some problems at a time, in order.

        An engine that queues for itself gets all problems at once: in closed parts each part would
        wait for its longest response.

        Args:
            prompts: N problems.
            n: responses per problem.
            sampling: how they are drawn.
            version: of the weights that the engine must hold.
            generator: decides all of them.
            max_rows: about as many responses are yielded at once, and sampled at once by an engine
                without a queue, so that the device's memory does not grow with N.
        """
        yielded = max(1, max_rows // n)
        sampled = len(prompts) if self.engine.queues else yielded
        for first in range(0, len(prompts), sampled):
            tokens = prompts.tokens[first : first + sampled]
            with in_phase("rollout"):
                drawn = self.engine.sample(tokens, n, sampling, generator).of_version(version)
            for start in range(0, len(tokens), yielded):
                end = min(start + yielded, len(tokens))
                part = drawn.part(start, end).to(self.policy.device)
                yield Responses(
                    range(first + start, first + end), tokens[start:end], part, self.policy
                )

    def hand_over(self, version: int) -> None:
        """Give the engine the model's weights as they are now, under a version."""
        self.engine.release()
        self.engine.update_weights(self.policy.model, version)

    def generator(self, stream: Stream, *position: int) -> torch.Generator:
        """Return the random number generator of one purpose and position in the run."""
        return torch_generator(self.seed, stream, *position, device=self.policy.device)


def time_notice(sampler: Sampler, prompts: PromptSet, config: TrainConfig) -> list[str]:
    """Return a notice of the hours that sampling the votes will take; none if they are few.

    A trial draws a few tokens of `n_votes` responses to the first prompt, with random numbers of
    its own. The estimate takes every response to `max_response_tokens`, and problems one by one.

    Args:
        sampler: of an engine in this process, with the weights to sample from.
        prompts: N problems.
        config: settled settings.
    """
    length = config.max_response_tokens or 0
    if config.is_tiny or length <= _TRIAL:
        return []
    _trial(sampler, prompts, config.n_votes, 2)  # the first call also sets up kernels
    short, long = (_trial(sampler, prompts, config.n_votes, n) for n in (1, _TRIAL))
    if long[1] <= short[1]:
        return []  # all responses ended at once
    per_token = (long[0] - short[0]) / (long[1] - short[1])
    visits = len(prompts) * (config.epochs + 1)
    seconds = visits * length * per_token
    if seconds < LONG:
        return []
    shorter = f"{options}, or " if (options := " ".join(_shorter(config))) else ""
    return [
        f"sampling may take up to {seconds / 3600:.0f} hours here: {visits} visits, each with "
        f"{config.n_votes} responses of {length} tokens, at {per_token:.2g} s per token of all "
        "of them (a short trial, one problem at a time; without updates and evaluations); for a "
        f"shorter run give {shorter}fewer --epochs or --n-problems"
    ]


def _shorter(config: TrainConfig) -> Iterator[str]:
    """Yield the options of a run on a small machine, of those that make this one shorter."""
    for name, small in _SMALL.items():
        if (getattr(config, name) or 0) > small:
            yield f"--{name.replace('_', '-')} {small}"


def _trial(sampler: Sampler, prompts: PromptSet, n: int, n_tokens: int) -> tuple[float, int]:
    """Return the seconds that a draw takes, and the tokens of its longest response."""
    generator = torch.Generator(sampler.policy.device).manual_seed(0)
    start = time.perf_counter()
    with in_phase("rollout"):
        drawn = sampler.engine.sample(prompts.tokens[:1], n, Sampling(n_tokens), generator)
    longest = int(drawn.lengths_PN.max())  # waits for a GPU
    return time.perf_counter() - start, longest
