"""From what an epoch saw to the rows of the trace (columns: `lab.trace.schema`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import Votes
from guard_core.rules.rule import at_label
from lab.trace.schema import record_dtype, truth_columns
from sim.settings.config import SimConfig
from sim.world.sampling import Floats, Ints, Records, Shorts

RECORD = record_dtype(("right", np.int32))
"""Record of one visit: 64 bytes, a line of the cache.

`right` is the number of votes for the true answer; the other fields are columns of the trace.
"""


class Epoch(NamedTuple):
    """All visits of one epoch, in visiting order; records, norms and counts are filled in place."""

    epoch: int
    """0 before training."""
    problems_RN: Ints
    truth_RN: Shorts
    tie_RN: Floats
    """Of `guard_core.Draws`, as the next two, by problem and not by visit."""
    skip_RN: Floats
    pick_RN: Floats
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

    def tally(self, at: slice, votes: Votes) -> None:
        """Write the votes of some visits, and how many of them are right and unparseable."""
        records_RP = self.records_RN[:, at]
        records_RP["n_unparseable"] = votes.n_votes - votes.counts.sum(axis=-1)
        records_RP["right"] = at_label(votes.counts, self.truth_RN[:, at])
        self.counts_SNA[:, at] = votes.counts[: len(self.counts_SNA)]


def majority_right(counts_RPA: Ints, truth_RP: Shorts) -> Floats:
    """(R, P) chance that the majority vote, ties broken at random, is right; 0 without a vote."""
    wins_RPA = (counts_RPA == counts_RPA.max(axis=-1, keepdims=True)) & (counts_RPA > 0)
    return at_label(wins_RPA, truth_RP) / np.maximum(wins_RPA.sum(axis=-1), 1)


@dataclass(frozen=True)
class Tables:
    """Rows that one epoch adds to the trace, made where read.

    By column name, (rows,) arrays or one number for all rows.
    """

    config: SimConfig
    epoch: Epoch
    pass_at_1_R: Floats
    """Accuracies at the end of the epoch, as `majority_R`; NaN where not measured."""
    majority_R: Floats

    @cached_property
    def visits(self) -> dict[str, Any]:
        """Replicate by replicate, in visiting order."""
        c, epoch = self.config, self.epoch
        records_M = epoch.records_RN.reshape(-1)
        columns = {"step": self._step_N, "problem": epoch.problems_RN.astype(np.int32)}
        rows = self._rows(epoch.problems_RN.shape, columns)
        rows |= {n: records_M[n] for n in records_M.dtype.names or () if n != "right"}
        label_correct_M = rows["label"] == epoch.truth_RN.reshape(-1)
        rows |= truth_columns(records_M["right"], c.n_votes, label_correct_M)
        return rows | {"epoch": epoch.epoch, "visit": epoch.epoch, "n_votes": c.n_votes}

    @cached_property
    def steps(self) -> dict[str, Any] | None:
        """Replicate by replicate, batch by batch; None before training."""
        c, epoch = self.config, self.epoch
        if not epoch.epoch:
            return None
        starts_B = np.arange(0, c.n_problems, c.batch_size)
        # First visit of every optimizer step, all of whose visits have its norm.
        first_K = np.flatnonzero(np.arange(c.n_problems) % c.batch_size % c.mini_batch == 0)
        steps_B = np.searchsorted(first_K, starts_B)
        norm_RB = np.add.reduceat(epoch.norm_RN[:, first_K], steps_B, axis=1)
        columns = {
            "step": self._step_N[starts_B],
            "lr": epoch.lr_RB,
            "update_norm": norm_RB / np.diff(steps_B, append=len(first_K)),
            "n_problems": np.diff(starts_B, append=c.n_problems),
            "n_skipped": np.add.reduceat(epoch.records_RN["skipped"], starts_B, axis=1, dtype=int),
        }
        return self._rows(epoch.lr_RB.shape, columns) | {"epoch": epoch.epoch}

    @cached_property
    def evals(self) -> dict[str, Any]:
        """One row per replicate."""
        c, epoch = self.config, self.epoch.epoch
        return {
            "replicate": self._replicate_R,
            "step": epoch * c.n_batches,
            "epoch": epoch,
            "pass_at_1": self.pass_at_1_R,
            "maj_accuracy": self.majority_R,
        }

    @cached_property
    def votes(self) -> dict[str, Any] | None:
        """One row per visit and answer with a vote, in visiting order; None if not kept."""
        epoch = self.epoch
        S, N, A = epoch.counts_SNA.shape
        if not S:
            return None
        counts_M = epoch.counts_SNA.reshape(-1)
        voted = np.flatnonzero(counts_M)
        visit, answer = np.divmod(voted, A)
        return {
            "replicate": self._replicate_R[visit // N],
            "step": self._step_N[visit % N],
            "epoch": epoch.epoch,
            "visit": epoch.epoch,
            "problem": epoch.problems_RN.reshape(-1)[visit],
            "answer": answer,
            "count": counts_M[voted],
        }

    def _rows(self, shape: tuple[int, ...], columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """(rows,) columns, the replicate's among them, of some that broadcast to (R, ...)."""
        columns = {"replicate": self._replicate_R[:, None], **columns}
        return {name: np.broadcast_to(part, shape).reshape(-1) for name, part in columns.items()}

    @property
    def _replicate_R(self) -> NDArray[np.int16]:
        return np.array(self.config.replicate_numbers, np.int16)

    @property
    def _step_N(self) -> Shorts:
        """(N,) batch of each visit, in visiting order, 0 before training; the run's first is 1."""
        c, epoch = self.config, self.epoch.epoch
        batch_N = 1 + np.arange(c.n_problems, dtype=np.int32) // c.batch_size
        return (epoch - 1) * c.n_batches + batch_N if epoch else 0 * batch_N
