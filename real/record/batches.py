"""The batches of a run in order, and when evaluations and checkpoints follow them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.settings.config import TrainConfig
from real.settings.seeds import Stream, generator


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of problems."""

    step: int
    """Number of the batch in the run, from 1."""
    epoch: int
    """From 1; also the number of these problems' visit."""
    problems_P: NDArray[np.int64]
    """(P,) problem indices."""
    ends_epoch: bool
    ends_run: bool

    def is_evaluated(self, config: TrainConfig) -> bool:
        """Return whether an evaluation follows."""
        return self.ends_run or is_due(config, self.step, self.epoch, self.ends_epoch)


def batches(config: TrainConfig, n_problems: int, after: int = 0) -> Iterator[Batch]:
    """Yield all batches of a run; each epoch has a new order of the problems.

    Args:
        config: settled settings.
        n_problems: N.
        after: number of batches that are done; these are left out.
    """
    per_epoch = batches_per_epoch(config, n_problems)
    for epoch in range(1 + after // per_epoch, config.epochs + 1):
        order_N = generator(config.seed, Stream.ORDER, epoch).permutation(n_problems)
        for i in range(per_epoch):
            step = (epoch - 1) * per_epoch + i + 1
            if step <= after:
                continue
            start = i * config.batch_size
            last = i + 1 == per_epoch
            yield Batch(
                step=step,
                epoch=epoch,
                problems_P=order_N[start : start + config.batch_size],
                ends_epoch=last,
                ends_run=last and epoch == config.epochs,
            )


def is_due(config: TrainConfig, step: int, epoch: int, ends_epoch: bool) -> bool:
    """Return whether an evaluation follows a batch, apart from the one after the last batch.

    Args:
        config: `eval_steps` counts batches and, where it is above 0, replaces `eval_every`, which
            counts epochs.
        step: batches so far.
        epoch: of the batch.
        ends_epoch: the batch is the epoch's last.
    """
    if config.eval_steps:
        return step % config.eval_steps == 0
    return ends_epoch and config.eval_every > 0 and epoch % config.eval_every == 0


def with_next(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch | None]]:
    """Yield each batch with the one after it, None at the end."""
    before: Batch | None = None
    for batch in batches:
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None


def checkpoint_interval(config: TrainConfig, n_problems: int) -> int:
    """Return the number of batches between checkpoints; 0 if none are written."""
    every = config.checkpoint_every
    return batches_per_epoch(config, n_problems) if every is None else every


def batches_per_epoch(config: TrainConfig, n_problems: int) -> int:
    """Batches of one pass over the problems; the last one may be smaller."""
    return -(-n_problems // config.batch_size)
