"""The votes of every batch: sampled on time or one step ahead, decoded once, and read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Thread
from typing import Any

import torch
from torch import Generator, Tensor

from guard_core import PolicyStreams
from guard_core.rules import Rule
from lab.base.columns import Ints
from real.engines.ranked import RankedEngine
from real.engines.rollouts import Engine, Prompts, Rollouts, Sampling
from real.model.machine import in_phase
from real.model.policy import Policy
from real.problems.problem import PromptSet
from real.ranks.distributed import Ranks
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, torch_generator
from real.update.ema import WeightAverage
from real.update.packing import Group


@dataclass(frozen=True)
class Responses:
    """N responses to each of P prompts."""

    problems: Sequence[int]
    """(P,) index of the problem that each prompt belongs to."""
    prompts: Sequence[list[int]]
    rollouts: Rollouts
    policy: Policy

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

    def groups(self, streams: PolicyStreams, mask_truncated: bool = False) -> list[Group]:
        """Return (P,) groups of the loss, of the first K responses that the streams are for.

        Without truncated ones if these are masked; a problem without any other is dropped.
        """
        n_samples, drawn = streams.majority.shape[1], self.rollouts
        device = drawn.tokens_PNT.device
        groups: list[Group] = []
        for row, prompt in enumerate(self.prompts):
            ended_K = drawn.finished_PN[row, :n_samples]
            kept_K: Any = ended_K if mask_truncated and bool(ended_K.any()) else slice(None)
            group = Group(
                prompt_L=torch.tensor(prompt, dtype=torch.long, device=device),
                tokens_KT=drawn.tokens_PNT[row, :n_samples][kept_K],
                old_KT=drawn.logprobs_PNT[row, :n_samples][kept_K],
                lengths_K=drawn.lengths_PN[row, :n_samples][kept_K],
                majority_K=torch.as_tensor(streams.majority[row], device=device).float()[kept_K],
                minority_K=torch.as_tensor(streams.minority[row], device=device).float()[kept_K],
                weight=float(streams.weight[row]),
                dropped=bool(streams.drop[row]) or (mask_truncated and not bool(ended_K.any())),
            )
            groups.append(group)
        return groups


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples responses, each batch with random numbers of its own."""

    engine: Engine
    policy: Policy
    seed: int
    max_rows: int
    """Responses that all ranks together may hold at once."""
    queues: bool = False
    """The engine queues requests for itself, so that it is best given all prompts at once."""

    def sample(
        self,
        problems: Sequence[int],
        prompts: Sequence[list[int]],
        n: int,
        sampling: Sampling,
        version: int,
        generator: Generator,
    ) -> Responses:
        """Sample `n` responses to each problem's prompt, with the weights of that version."""
        rollouts = self.engine.sample(prompts, n, sampling, generator).of_version(version)
        return Responses(problems, prompts, rollouts.to(self.policy.device), self.policy)

    def sample_all(
        self, prompts: PromptSet, n: int, sampling: Sampling, version: int, generator: Generator
    ) -> Iterator[Responses]:
        """Sample `n` responses to every problem; yield about `max_rows` at a time, in order.

        An engine that queues gets all problems at once: each closed part would wait for its longest
        response. Others are asked for as many as are yielded.
        """
        yielded = max(1, self.max_rows // n)
        sampled = len(prompts) if self.queues else yielded
        for first in range(0, len(prompts), sampled):
            tokens = prompts.tokens[first : first + sampled]
            with in_phase("rollout"):
                drawn = self.engine.sample(tokens, n, sampling, generator).of_version(version)
            for start in range(0, len(tokens), yielded):
                part_tokens = tokens[start : start + yielded]
                part = drawn.part(start, start + len(part_tokens)).to(self.policy.device)
                problems = range(first + start, first + start + len(part_tokens))
                yield Responses(problems, part_tokens, part, self.policy)

    def hand_over(self, version: int) -> None:
        """Give the engine the model's weights as they are now, under a version."""
        self.engine.release()
        self.engine.update_weights(self.policy.model, version)

    @contextmanager
    def answering(self, average: WeightAverage | None, version: int) -> Iterator[int]:
        """Let the engine, which has the trained weights, sample by an average of them, if any.

        Yields the version that it samples by; the engine has the trained weights again afterwards.
        """
        if average is None:
            yield version
            return
        with average.held_by(self.policy.model):
            # A number that no version of the trained weights has.
            self.hand_over(-1 - version)
            yield -1 - version
        self.hand_over(version)

    def generator(self, stream: Stream, *position: int) -> Generator:
        """Return the random number generator of one purpose and position in the run."""
        return torch_generator(self.seed, stream, *position, device=self.policy.device)


@dataclass(frozen=True)
class Parts:
    """What a run samples, how, and what for."""

    config: TrainConfig
    rule: Rule
    prompts: PromptSet
    sampler: Sampler
    sampling: Sampling
    """Of the votes."""
    read: Callable[[Responses], Ints]
    """Responses to (P, V) answer ids, see `Supervisor.read`."""
    ranks: Ranks

    @property
    def n_steps(self) -> int:
        """Batches of the whole run."""
        return self.config.epochs * -(-len(self.prompts) // self.config.batch_size)

    def first_votes(self, prompts: PromptSet, stream: Stream) -> Iterator[Responses]:
        """Sample votes on all problems before training; yield some problems at a time, in order."""
        n, generator = self.config.n_votes, self.sampler.generator(stream, 0)
        return self.sampler.sample_all(prompts, n, self.sampling, 0, generator)


_Drawn = tuple[Rollouts, float]
"""Responses, and the seconds from the request to those of this rank."""


class VoteSampler:
    """Samples the votes of one batch after another.

    With `ahead`, the votes of batch k + 1 are sampled while batch k is trained on, with the
    weights that batch k - 1 has left; the first batch is sampled at its start. The engine is idle
    again, and the votes are in main memory, before weights are handed over, an evaluation begins,
    or a checkpoint is written: none of these can change a vote.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._ahead = parts, bool(parts.config.async_level)
        self._pending: tuple[Future[_Drawn], int] | None = None
        """Votes to come, and their problems; until they are there the engine may only be closed."""
        self._drawn: _Drawn | None = None
        self._columns: dict[str, float] = {}

    def sample(self, problems_P: Ints, step: int) -> Responses:
        """Return the votes of batch `step`, sampled now unless they were before."""
        parts, problems, prompts = self._parts, problems_P.tolist(), self._tokens(problems_P)
        sampler, drawn, self._drawn = parts.sampler, self._drawn, None
        if drawn is not None:
            rollouts, seconds = drawn
            self._columns = {"staleness": 1.0, "seconds_ahead": seconds}
            rollouts = rollouts.of_version(step - 2).to(sampler.policy.device)
            return Responses(problems, prompts, rollouts, sampler.policy)
        self._columns = {"staleness": 0.0, "seconds_ahead": 0.0} if self._ahead else {}
        n, generator = parts.config.n_votes, sampler.generator(Stream.VOTES, step)
        return sampler.sample(problems, prompts, n, parts.sampling, step - 1, generator)

    def begin(self, problems_P: Ints, step: int) -> None:
        """Begin to sample the votes of batch `step` with the weights that the engine has."""
        if self._ahead:
            generator = self._parts.sampler.generator(Stream.VOTES, step)
            self._pending = Future(), len(problems_P)
            arguments = self._pending[0], self._tokens(problems_P), generator
            # A daemon: a run that fails meanwhile does not wait for it.
            Thread(target=self._draw, args=arguments, name="sampling", daemon=True).start()

    def _draw(self, pending: Future[_Drawn], prompts: Prompts, generator: Generator) -> None:
        """Sample outside of this process, in a thread, while the trainer goes on."""
        parts, started = self._parts, time.perf_counter()
        engine = parts.sampler.engine
        draw = engine.sample_part if isinstance(engine, RankedEngine) else engine.sample
        try:
            with in_phase("rollout"):
                rollouts = draw(prompts, parts.config.n_votes, parts.sampling, generator)
            pending.set_result((rollouts, time.perf_counter() - started))
        except BaseException as error:  # raised again where the responses are waited for
            pending.set_exception(error)

    def release(self) -> None:
        """Free the engine's memory for an update, unless it samples meanwhile."""
        if not self._ahead:
            self._parts.sampler.engine.release()

    def finish(self) -> None:
        """Wait for the votes that were begun, if any, those of all ranks."""
        if self._pending is None:
            return
        (pending, n_problems), self._pending = self._pending, None
        (rollouts, seconds), parts = pending.result(), self._parts
        engine = parts.sampler.engine
        if isinstance(engine, RankedEngine):
            # Ranks exchange tensors in their main threads alone, where the order is one for all.
            rollouts = engine.gathered(rollouts, n_problems, parts.config.n_votes, parts.sampling)
        self._drawn = rollouts, seconds

    def columns(self, n_tokens: int) -> dict[str, float]:
        """Return columns of the steps about the last votes; none unless they are sampled ahead."""
        seconds = self._columns.get("seconds_ahead")
        return self._columns | ({"sampled_per_second": n_tokens / seconds} if seconds else {})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and plain values for checkpoints: votes not trained on yet, if any."""
        if self._drawn is None:
            return None
        rollouts, seconds = self._drawn
        return rollouts.packed(), {"version": rollouts.version, "seconds": seconds}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        pad = self._parts.sampler.policy.pad_token_id
        self._drawn = Rollouts.unpacked(tensors, values["version"], pad), values["seconds"]

    def _tokens(self, problems_P: Ints) -> list[list[int]]:
        return [self._parts.prompts.tokens[i] for i in problems_P]
