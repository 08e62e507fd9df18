"""Responses: sampled, decoded once for all that read them, and turned into groups of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from guard_core import PolicyStreams
from real.engines.rollouts import Engine, Rollouts, Sampling
from real.model.memory import memory_limit
from real.model.policy import Policy
from real.problems.prompts import PromptSet, as_tensor
from real.settings.seeds import Stream, torch_generator
from real.update.group import Group


@dataclass(frozen=True)
class Responses:
    """N responses to each of P prompts."""

    problems: Sequence[int]
    """(P,) index of the problem that each prompt belongs to."""
    prompts: Sequence[list[int]]
    """(P,) token ids."""
    rollouts: Rollouts
    """(P, N) sampled responses."""
    policy: Policy
    """The policy whose tokenizer decodes them."""

    @cached_property
    def texts(self) -> list[list[str]]:
        """(P, N) response texts, decoded at the first call."""
        lengths_PN = self.rollouts.lengths_PN
        texts = self.policy.texts(self.rollouts.tokens_PNT.flatten(0, 1), lengths_PN.flatten())
        n = lengths_PN.shape[1]
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    @property
    def n_tokens(self) -> int:
        """Tokens of all responses together."""
        return int(self.rollouts.lengths_PN.sum())

    def groups(self, streams: PolicyStreams) -> list[Group]:
        """Return (P,) groups of the loss, one per prompt.

        Args:
            streams: NumPy arrays; advantages (P, K) of the first K responses, which are trained on.
        """
        n_samples, device = streams.majority.shape[1], self.rollouts.tokens_PNT.device
        return [
            Group(
                prompt_L=as_tensor(prompt, device),
                tokens_KT=self.rollouts.tokens_PNT[row, :n_samples],
                old_KT=self.rollouts.logprobs_PNT[row, :n_samples],
                lengths_K=self.rollouts.lengths_PN[row, :n_samples],
                majority_K=torch.as_tensor(streams.majority[row], device=device).float(),
                minority_K=torch.as_tensor(streams.minority[row], device=device).float(),
                weight=float(streams.weight[row]),
                dropped=bool(streams.drop[row]),
            )
            for row, prompt in enumerate(self.prompts)
        ]


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

    def generator(self, stream: Stream, *place: int) -> torch.Generator:
        """Return the random number generator of one purpose and place in the run."""
        return torch_generator(self.seed, stream, *place, device=self.policy.device)
