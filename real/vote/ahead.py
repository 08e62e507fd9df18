"""The votes of every batch: sampled when it is trained on, or while the batch before is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lab.errors import UserError
from real.engines.rollouts import Engine, Prompts, Rollouts, Sampling
from real.engines.wrappers import RankedEngine
from real.model.memory import in_phase
from real.problems.problem import PromptSet
from real.settings.config import TrainConfig
from real.settings.seeds import Stream
from real.vote.read import Responses
from real.vote.sample import Sampler

Ints = NDArray[np.int64]


class _Drawn(NamedTuple):
    """Votes of the next batch."""

    rollouts: Rollouts
    seconds: float
    """Time to sample them."""


class Pending:
    """Responses that an engine samples in its own process while the trainer goes on.

    Until `rollouts` has returned, the engine may only be closed.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
    ) -> None:
        """Ask for `n` responses to each prompt; returns at once.

        Args:
            engine: samples outside of this process, with weights of its own.
            prompts: token ids of each prompt.
            n: responses to each.
            sampling: how they are drawn.
            generator: decides all of them, and belongs to this draw alone.
        """
        self.seconds = 0.0
        """Time from the request to the responses of this rank, once they are there."""
        self._engine, self._asked = engine, (prompts, n, sampling, generator)
        self._found: Rollouts | None = None
        self._error: BaseException | None = None
        # A daemon: a run that fails meanwhile does not wait for it.
        self._thread = threading.Thread(target=self._sample, name="sampling", daemon=True)
        self._thread.start()

    def rollouts(self) -> Rollouts:
        """Wait for the responses, those of all ranks.

        Raises:
            EngineError: as the engine's `sample` raises it.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        if not isinstance(self._engine, RankedEngine):
            return self._found
        # Ranks exchange tensors in their main threads alone, where the order is one for all.
        prompts, n, sampling, _ = self._asked
        return self._engine.gathered(self._found, len(prompts), n, sampling)

    def _sample(self) -> None:
        engine, started = self._engine, time.perf_counter()
        draw = engine.sample_part if isinstance(engine, RankedEngine) else engine.sample
        try:
            with in_phase("rollout"):
                self._found = draw(*self._asked)
        except BaseException as error:  # raised again where the responses are waited for
            self._error = error
        self.seconds = time.perf_counter() - started


class VoteSampler:
    """Samples the votes of one batch after another.

    With `ahead`, the votes of batch k + 1 are sampled while batch k is trained on, with the weights
    that batch k - 1 has left. The engine is idle again, and the votes are in main memory, before
    weights are handed over, an evaluation begins, or a checkpoint is written: none of these can
    change a vote. The first batch has nothing to be sampled beside, and is sampled at its start.
    """

    def __init__(
        self, config: TrainConfig, sampler: Sampler, prompts: PromptSet, sampling: Sampling
    ) -> None:
        """Sample nothing yet.

        Args:
            config: of the run.
            sampler: of the run.
            prompts: its problems.
            sampling: of the votes.
        """
        self._config, self._sampler = config, sampler
        self._prompts, self._sampling = prompts, sampling
        self._pending: Pending | None = None
        self._drawn: _Drawn | None = None
        self._columns: dict[str, float] = {}

    def before_training(self, max_rows: int) -> Iterator[Responses]:
        """Sample votes on all problems before training; yields some problems at a time, in order.

        Args:
            max_rows: see `Sampler.sample_all`.
        """
        sampler, n_votes = self._sampler, self._config.n_votes
        generator = sampler.generator(Stream.VOTES, 0)
        return sampler.sample_all(self._prompts, n_votes, self._sampling, 0, generator, max_rows)

    def sample(self, problems_P: Ints, step: int) -> Responses:
        """Return the votes of batch `step`, sampled now unless they were before.

        Raises:
            EngineError: the engine failed, or had other weights.
        """
        drawn, self._drawn = self._drawn, None
        prompts = self._tokens(problems_P)
        if drawn is not None:
            self._columns = {"staleness": 1.0, "seconds_ahead": drawn.seconds}
            policy = self._sampler.policy
            rollouts = drawn.rollouts.of_version(step - 2)
            return Responses(problems_P.tolist(), prompts, rollouts.to(policy.device), policy)
        self._columns = {"staleness": 0.0, "seconds_ahead": 0.0} if self._config.ahead else {}
        return self._sampler.sample(
            problems_P.tolist(),
            prompts,
            self._config.n_votes,
            self._sampling,
            step - 1,
            self._sampler.generator(Stream.VOTES, step),
        )

    def begin(self, problems_P: Ints, step: int) -> None:
        """Begin to sample the votes of batch `step` with the weights that the engine has."""
        if self._config.ahead:
            self._pending = Pending(
                self._sampler.engine,
                self._tokens(problems_P),
                self._config.n_votes,
                self._sampling,
                self._sampler.generator(Stream.VOTES, step),
            )

    def release(self) -> None:
        """Free the engine's memory for an update, unless it samples meanwhile."""
        if not self._config.ahead:
            self._sampler.engine.release()

    def finish(self) -> None:
        """Wait for what was begun, if anything.

        Raises:
            EngineError: the engine failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            self._drawn = _Drawn(pending.rollouts(), pending.seconds)

    def columns(self, n_tokens: int) -> dict[str, float]:
        """Return columns of the steps about the last votes; none without `ahead`.

        Args:
            n_tokens: of all these votes.
        """
        seconds = self._columns.get("seconds_ahead")
        return self._columns | ({"sampled_per_second": n_tokens / seconds} if seconds else {})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: votes that are not trained on yet, if any."""
        return {} if self._drawn is None else self._drawn.rollouts.packed()

    def values(self) -> dict[str, Any]:
        """Return the plain values of a checkpoint."""
        drawn = self._drawn
        if drawn is None:
            return {}
        return {"version": drawn.rollouts.version, "seconds": drawn.seconds}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take over what `tensors` and `values` returned.

        Raises:
            UserError: they are no votes.
        """
        try:
            pad = self._sampler.policy.pad_token_id
            rollouts = Rollouts.unpacked(tensors, values["version"], pad)
            self._drawn = _Drawn(rollouts, values["seconds"])
        except (KeyError, RuntimeError) as error:
            raise UserError(f"checkpoint: its votes cannot be read ({error})") from error

    def _tokens(self, problems_P: Ints) -> list[list[int]]:
        return [self._prompts.tokens[i] for i in problems_P]
