"""From what an epoch saw to the rows of the trace (columns: `lab.schema`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.config import SimConfig

Columns = dict[str, NDArray[np.generic]]


class Tables(NamedTuple):
    """Rows that one epoch adds to the trace, (rows,) arrays by column name."""

    visits: Columns
    """Replicate by replicate, in visiting order."""
    steps: Columns | None
    """Replicate by replicate, batch by batch; None before training."""
    evals: Columns
    """One row per replicate."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """All visits of one epoch, in visiting order."""

    epoch: int
    """0 before training."""
    problems_RN: NDArray[np.int64]
    truth_RN: NDArray[np.int64]
    counts_RNA: NDArray[np.int64]
    """Votes per answer."""
    majority_RN: NDArray[np.int64]
    """Winner of the visit's own votes."""
    columns: dict[str, NDArray[np.generic]]
    """(R, N) of the columns that the guard decides."""
    lr_B: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Step size of every batch."""
    norm_RN: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """Norm of the update on every visit, 0 where it was skipped."""


def tables(config: SimConfig, seen: Epoch, pass_at_1_R: NDArray[np.float64]) -> Tables:
    """The rows of one epoch.

    Args:
        config: of the run.
        seen: the epoch's visits.
        pass_at_1_R: chance of a right response at the end of the epoch.
    """
    visits = _visits(config, seen)
    steps = _steps(config, seen) if seen.epoch else None
    return Tables(visits, steps, _evals(config, seen, pass_at_1_R))


def _visits(config: SimConfig, seen: Epoch) -> Columns:
    shape = seen.problems_RN.shape
    right_RN = np.take_along_axis(seen.counts_RNA, seen.truth_RN[..., None], axis=2)[..., 0]
    step_N = _first_step(config, seen.epoch) + np.arange(shape[1]) // config.batch_size
    columns = {
        "replicate": _numbers(config)[:, None],
        "step": step_N if seen.epoch else np.zeros_like(step_N),
        "epoch": np.array(seen.epoch),
        "visit": np.array(seen.epoch),
        "problem": seen.problems_RN,
        "n_votes": np.array(config.n_votes),
        "n_unparseable": config.n_votes - seen.counts_RNA.sum(axis=2),
        **seen.columns,
        "label_accuracy": right_RN / config.n_votes,
        "label_correct": seen.columns["label"] == seen.truth_RN,
        "correct_competitive": 4 * right_RN >= config.n_votes,
    }
    return {name: np.broadcast_to(c, shape).reshape(-1) for name, c in columns.items()}


def _steps(config: SimConfig, seen: Epoch) -> Columns:
    starts_B = np.arange(0, config.n_problems, config.batch_size)
    size_B = np.diff(starts_B, append=config.n_problems)
    shape = (config.replicates, len(starts_B))
    columns = {
        "replicate": _numbers(config)[:, None],
        "step": _first_step(config, seen.epoch) + np.arange(shape[1]),
        "epoch": np.array(seen.epoch),
        "lr": seen.lr_B,
        "update_norm": np.add.reduceat(seen.norm_RN, starts_B, axis=1) / size_B,
        "n_problems": size_B,
        "n_skipped": np.add.reduceat(seen.columns["skipped"], starts_B, axis=1, dtype=np.int64),
    }
    return {name: np.broadcast_to(c, shape).reshape(-1) for name, c in columns.items()}


def _evals(config: SimConfig, seen: Epoch, pass_at_1_R: NDArray[np.float64]) -> Columns:
    shape = (config.replicates,)
    columns = {
        "replicate": _numbers(config),
        "step": np.array(seen.epoch * config.n_batches),
        "epoch": np.array(seen.epoch),
        "pass_at_1": pass_at_1_R,
        "maj_accuracy": (seen.majority_RN == seen.truth_RN).mean(axis=1),
    }
    return {name: np.broadcast_to(c, shape).copy() for name, c in columns.items()}


def _first_step(config: SimConfig, epoch: int) -> int:
    """Number of the epoch's first batch; the run's first is 1."""
    return (epoch - 1) * config.n_batches + 1


def _numbers(config: SimConfig) -> NDArray[np.int64]:
    return config.first_replicate + np.arange(config.replicates)
