"""Random numbers by purpose and position, and the batches of a run in their order.

Every draw has its own generator, made from the run's seed, a stream and a position in the run. Two
arms of one seed therefore see the same problem order, guard draws and evaluation draws; and a
resumed run needs no generator's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

from real.settings.config import TrainConfig
from real.settings.groups import EvalSettings, OptimSettings


class Stream(IntEnum):
    """Purpose of random numbers, each with its positions in a run."""

    ORDER = 0  # epoch
    VOTES = 1  # step, 0 before training
    EVALUATION = 2  # step
    GUARD = 3  # problem, visit
    RULE = 4  # a rule's own: problem, visit
    SECOND = 5  # a rule's second votes: step, 0 before training
    REWORDING = 6  # rewordings of all problems before training: none
    VERIFIER = 7  # a model's verdicts on responses: step
    DEAL = 8  # permuted decisions: problem, visit


def generator(seed: int, stream: Stream, *position: int) -> np.random.Generator:
    """Return the NumPy generator of one position."""
    return np.random.default_rng(_sequence(seed, stream, position))


def request_seed(seed: int, stream: Stream, *position: int) -> int:
    """Return 63 bits of one position, for an engine that takes a request's seed."""
    return int(_sequence(seed, stream, position).generate_state(1, np.uint64)[0] >> 1)


def torch_generator(
    seed: int, stream: Stream, *position: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return the torch generator of one position."""
    return torch.Generator(device=device).manual_seed(request_seed(seed, stream, *position))


def _sequence(seed: int, stream: Stream, position: tuple[int, ...]) -> np.random.SeedSequence:
    words = [seed, int(stream), *position]
    # NumPy takes an array of single words as it is, a list number by number: ten times as slow.
    short = max(words) < 2**32
    return np.random.SeedSequence(np.array(words, np.uint32) if short else words)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of problems."""

    step: int
    epoch: int
    """From 1; also the number of these problems' visit."""
    problems_P: NDArray[np.int64]
    ends_epoch: bool
    ends_run: bool

    def is_evaluated(self, config: EvalSettings) -> bool:
        """Return whether an evaluation follows."""
        if config.eval_steps:
            return self.ends_run or self.step % config.eval_steps == 0
        every = config.eval_every
        return self.ends_run or (self.ends_epoch and every > 0 and self.epoch % every == 0)


def batches(config: TrainConfig, n_problems: int) -> Iterator[Batch]:
    """Yield all batches of a run; each epoch has a new order of the problems."""
    step, cuts = 0, range(config.batch_size, n_problems, config.batch_size)
    for epoch in range(1, config.epochs + 1):
        order_N = generator(config.seed, Stream.ORDER, epoch).permutation(n_problems)
        for problems_P in np.split(order_N, cuts):
            step += 1
            last = step % (len(cuts) + 1) == 0
            yield Batch(step, epoch, problems_P, last, last and epoch == config.epochs)


def checkpoint_interval(config: TrainConfig, n_problems: int) -> int:
    """Return the number of batches between checkpoints; 0 if none are written."""
    every = config.checkpoint_every
    return batches_per_epoch(config, n_problems) if every is None else every


def batches_per_epoch(config: OptimSettings, n_problems: int) -> int:
    """Batches of one pass over the problems; the last one may be smaller."""
    return -(-n_problems // config.batch_size)
