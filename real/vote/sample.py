"""Sampling of responses, each batch with random numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from real.engines.rollouts import Engine, Sampling
from real.model.memory import memory_limit
from real.model.policy import Policy
from real.problems.problem import PromptSet
from real.settings.seeds import Stream, torch_generator
from real.vote.read import Responses


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
        return Responses(problems, prompts, rollouts, self.policy)

    def sample_all(
        self,
        prompts: PromptSet,
        n: int,
        sampling: Sampling,
        version: int,
        generator: torch.Generator,
        max_rows: int,
    ) -> Iterator[Responses]:
        """Sample `n` responses to every problem, some problems at a time, in order.

        Args:
            prompts: N problems.
            n: responses per problem.
            sampling: how they are drawn.
            version: of the weights that the engine must hold.
            generator: decides all of them.
            max_rows: about as many responses are held at once, so memory does not grow with N.
        """
        at_once = max(1, max_rows // n)
        for start in range(0, len(prompts), at_once):
            problems = range(start, min(start + at_once, len(prompts)))
            tokens = prompts.tokens[problems.start : problems.stop]
            with memory_limit("rollout"):
                responses = self.sample(problems, tokens, n, sampling, version, generator)
            yield responses

    def generator(self, stream: Stream, *position: int) -> torch.Generator:
        """Return the random number generator of one purpose and position in the run."""
        return torch_generator(self.seed, stream, *position, device=self.policy.device)
