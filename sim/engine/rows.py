"""From what an epoch saw to the rows of the trace (columns: `lab.trace.schema`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Draws
from lab.trace.schema import record_dtype, truth_columns
from sim.settings.config import SimConfig
from sim.world.sampling import Floats, Ints, Records, Shorts

Columns = dict[str, NDArray[np.generic]]


RECORD = record_dtype(("right", np.int32))
"""Record of one visit: 64 bytes, a line of the cache.

`right` is the number of votes for the true answer; the other fields are columns of the trace.
"""


@dataclass(frozen=True, slots=True)
class Epoch:
    """All visits of one epoch, in visiting order; records, norms and counts are filled in place."""

    epoch: int
    """0 before training."""
    problems_RN: Ints
    truth_RN: Shorts
    draws: Draws
    """The guard's random numbers, by problem and not by visit."""
    records_RN: Records
    """One `RECORD` per visit."""
    lr_RB: Floats
    """Step size of every batch."""
    norm_RN: Floats
    """Norm of the update on every visit, 0 where it was skipped."""
    counts_SNA: Shorts
    """Votes per answer of the first S replicates, those whose votes are kept."""
    deal_RN: Floats | None = None
    """Random numbers of permuted decisions, by problem; None where they are not permuted."""


@njit(cache=True, nogil=True)
def tally(
    counts_RPA: Ints, truth_RN: Shorts, n_votes: int, start: int, records_RN: Records
) -> None:
    """Count right and unparseable votes of a batch, whose first visit has the place `start`."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            parsed = 0
            for a in range(A):
                parsed += counts_RPA[r, p, a]
            records_RN[r, start + p].n_unparseable = n_votes - parsed
            records_RN[r, start + p].right = counts_RPA[r, p, truth_RN[r, start + p]]


def majority_right(counts_RPA: Ints, truth_RP: Shorts) -> Floats:
    """(R, P) chance that the majority vote, ties broken at random, is right; 0 without a vote."""
    wins_RPA = (counts_RPA == counts_RPA.max(axis=-1, keepdims=True)) & (counts_RPA > 0)
    right_RP = np.take_along_axis(wins_RPA, truth_RP[..., None], axis=-1)[..., 0]
    return right_RP / np.maximum(wins_RPA.sum(axis=-1), 1)


class Tables:
    """Rows that one epoch adds to the trace, (rows,) arrays by column name, made where read.

    Args:
        pass_at_1_R: accuracies at the end of the epoch, as `majority_R`; NaN where not measured.
    """

    def __init__(
        self, config: SimConfig, epoch: Epoch, pass_at_1_R: Floats, majority_R: Floats
    ) -> None:
        self._config, self._epoch = config, epoch
        self._pass_at_1_R, self._majority_R = pass_at_1_R, majority_R

    @cached_property
    def visits(self) -> Columns:
        """Replicate by replicate, in visiting order."""
        return _visits(self._config, self._epoch)

    @cached_property
    def steps(self) -> Columns | None:
        """Replicate by replicate, batch by batch; None before training."""
        return _steps(self._config, self._epoch) if self._epoch.epoch else None

    @cached_property
    def evals(self) -> Columns:
        """One row per replicate."""
        return _evals(self._config, self._epoch, self._pass_at_1_R, self._majority_R)

    @cached_property
    def votes(self) -> Columns | None:
        """One row per visit and answer with a vote, in visiting order; None if not kept."""
        return _votes(self._config, self._epoch)


def _visits(config: SimConfig, epoch: Epoch) -> Columns:
    shape = epoch.problems_RN.shape
    records_M = epoch.records_RN.reshape(-1)
    columns: Columns = {
        "replicate": _numbers(config)[:, None],
        "step": _step_of_visits(config, epoch.epoch),
        "problem": epoch.problems_RN.astype(np.int32),
    }
    rows = {name: np.broadcast_to(c, shape).reshape(-1) for name, c in columns.items()}
    rows |= {n: records_M[n].copy() for n in records_M.dtype.names or () if n != "right"}
    label_correct_M = rows["label"] == epoch.truth_RN.reshape(-1)
    rows |= truth_columns(records_M["right"], config.n_votes, label_correct_M)
    same = {"epoch": epoch.epoch, "visit": epoch.epoch, "n_votes": config.n_votes}
    return rows | {name: np.array(value, np.int32) for name, value in same.items()}


def _votes(config: SimConfig, epoch: Epoch) -> Columns | None:
    S, N, A = epoch.counts_SNA.shape
    if not S:
        return None
    counts_M = epoch.counts_SNA.reshape(-1)
    voted = np.flatnonzero(counts_M)
    visit, answer = np.divmod(voted, A)
    return {
        "replicate": np.repeat(_numbers(config)[:S], N)[visit],
        "step": np.tile(_step_of_visits(config, epoch.epoch), S)[visit],
        "epoch": np.array(epoch.epoch, np.int32),
        "visit": np.array(epoch.epoch, np.int32),
        "problem": epoch.problems_RN.reshape(-1)[visit].astype(np.int32),
        "answer": answer.astype(np.int32),
        "count": counts_M[voted].astype(np.int32),
    }


def _steps(config: SimConfig, epoch: Epoch) -> Columns:
    starts_B = np.arange(0, config.n_problems, config.batch_size)
    size_B = np.diff(starts_B, append=config.n_problems).astype(np.int32)
    shape, skipped_RN = (config.replicates, len(starts_B)), epoch.records_RN["skipped"]
    columns = {
        "replicate": _numbers(config)[:, None],
        "step": _first_step(config, epoch.epoch) + np.arange(shape[1], dtype=np.int32),
        "epoch": np.array(epoch.epoch, np.int32),
        "lr": epoch.lr_RB,
        "update_norm": np.add.reduceat(epoch.norm_RN, starts_B, axis=1) / size_B,
        "n_problems": size_B,
        "n_skipped": np.add.reduceat(skipped_RN, starts_B, axis=1, dtype=np.int32),
    }
    return {name: np.broadcast_to(c, shape).reshape(-1) for name, c in columns.items()}


def _evals(config: SimConfig, epoch: Epoch, pass_at_1_R: Floats, majority_R: Floats) -> Columns:
    columns = {
        "replicate": _numbers(config),
        "step": np.array(epoch.epoch * config.n_batches, np.int32),
        "epoch": np.array(epoch.epoch, np.int32),
        "pass_at_1": pass_at_1_R,
        "maj_accuracy": majority_R,
    }
    return {name: np.broadcast_to(c, config.replicates).copy() for name, c in columns.items()}


def _first_step(config: SimConfig, epoch: int) -> int:
    """Number of the epoch's first batch; the run's first is 1."""
    return (epoch - 1) * config.n_batches + 1


def _step_of_visits(config: SimConfig, epoch: int) -> Shorts:
    """(N,) batch of each visit of an epoch, in visiting order."""
    if not epoch:
        return np.zeros(config.n_problems, np.int32)
    batch_N = np.arange(config.n_problems) // config.batch_size
    return (_first_step(config, epoch) + batch_N).astype(np.int32)


def _numbers(config: SimConfig) -> NDArray[np.int16]:
    return (config.first_replicate + np.arange(config.replicates)).astype(np.int16)
