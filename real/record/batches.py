"""The batches of a run in order, what follows each of them, and signals to stop after one.

After a signal the run goes on to the end of its batch, writes a checkpoint, and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from lab.signals import STOP_SIGNALS, stop
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


_NOTICE = (
    b"\nstopping after this batch, with a checkpoint; press Ctrl-C again to stop without waiting\n"
)
_SAME_PRESS = 1.0
"""Seconds within which further signals are taken for the first one.

A terminal sends Ctrl-C to all processes, and a parent then often passes it on to its children.
"""


class StopRequest:
    """A request to stop the run, if any."""

    def __init__(self) -> None:
        self.deferred = False
        """Let the first signal wait for `leave_if`; set once there is a checkpoint to add to."""
        self.asked: signal.Signals | None = None
        self._asked_at = 0.0

    def agreed(self, highest: Callable[[int], int]) -> signal.Signals | None:
        """Return the signal that asked for the end so far, if any.

        Args:
            highest: returns the largest of all ranks' numbers, since signals do not reach all ranks
                at the same moment.
        """
        number = highest(self.asked or 0)
        return signal.Signals(number) if number else None

    def leave_if(self, asked: signal.Signals | None) -> None:
        """End the run, at a point where all its work is on disk.

        Args:
            asked: from `agreed`.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
            Terminated: another signal came.
        """
        if asked is not None:
            stop(asked)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.asked is not None and now - self._asked_at < _SAME_PRESS:
            return
        if not self.deferred or self.asked is not None:
            stop(number)
        self.asked, self._asked_at = signal.Signals(number), now
        # Not print: the signal may have come in the middle of one, which cannot be entered twice.
        # The parent of a comparison's runs prints the notice for them.
        if multiprocessing.parent_process() is None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, _NOTICE)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the signals that ask a process to stop; possible in the main thread only."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    # Signals that are ignored, as under nohup, stay ignored.
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, request.handle)
    try:
        yield request
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)
