"""The numbers of a run per replicate, summed up while it goes on: no trace is kept.

A sweep needs a few numbers per replicate, not the hundreds of thousands of rows that they come
from, so the memory is that of one epoch. The numbers are those of `lab.compare.tables.metrics`, in
its units; only the update's norm is absolute, since a sweep may have no TTRL run to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.columns import ints
from lab.measures.fate import FATES, FIRST, LAST, MIN_VISITS, classify, fate_shares
from lab.trace.trace import Trace

MEASURES = (
    "pass_start",
    "pass_final",
    "pass_best",
    "maj_start",
    "maj_final",
    "label_final",
    *FATES,
    "TotalDeg",
    "L/D",
    "update_norm",
    "skipped",
)
"""Columns in percent; `label_final` is that of problems whose label is right at the end. L/D is a
ratio, NaN where nothing degraded; `update_norm` is the mean norm of the logit change per
scheduled step. Fates are NaN in runs that are too short to have them."""

Rows = Mapping[str, Any]


class Tally:
    """Sums over a run's epochs."""

    def __init__(self, first_replicate: int, replicates: int, n_problems: int, epochs: int) -> None:
        """Start empty; the sizes are those of the run's settings."""
        self._first, self._epochs, self._n_problems = first_replicate, epochs, n_problems
        self._initial_RN = np.zeros((replicates, n_problems))
        self._final_RN = np.zeros((replicates, n_problems))
        self._skipped_R = np.zeros(replicates)
        self._moved_R = np.zeros(replicates)
        self._scheduled_R = np.zeros(replicates)
        self._right_R = np.zeros(replicates)
        self._scores: list[NDArray[np.float64]] = []
        """(2, R) pass@1 and majority accuracy after every epoch, 0 first."""

    def add(self, epoch: int, visits: Rows, steps: Rows | None, evals: Rows) -> None:
        """Add one epoch's rows (columns: `lab.trace.schema`), in any order of the replicates."""
        place = np.asarray(evals["replicate"]) - self._first
        scores_2R = np.empty((2, len(self._moved_R)))
        scores_2R[:, place] = evals["pass_at_1"], evals["maj_accuracy"]
        self._scores.append(scores_2R)
        if epoch == 0 or steps is None:
            return
        r, n = np.asarray(visits["replicate"]) - self._first, np.asarray(visits["problem"])
        self._skipped_R += np.bincount(r, visits["skipped"], len(self._skipped_R))
        if epoch <= FIRST:
            self._initial_RN[r, n] += visits["label_accuracy"]
        if epoch > self._epochs - LAST:
            self._final_RN[r, n] += visits["label_accuracy"]
        if epoch == self._epochs:
            self._right_R += np.bincount(r, visits["label_correct"], len(self._right_R))
        b = np.asarray(steps["replicate"]) - self._first
        sizes = np.asarray(steps["n_problems"], np.float64)
        self._moved_R += np.bincount(b, steps["update_norm"] * sizes, len(self._moved_R))
        self._scheduled_R += np.bincount(b, sizes, len(self._scheduled_R))

    def table(self) -> pd.DataFrame:
        """One row per replicate, indexed by its number, one column per entry of `MEASURES`."""
        scores_2RE = 100 * np.stack(self._scores, axis=-1)
        passes_RE, majority_RE = scores_2RE
        replicates = self._first + np.arange(len(passes_RE))
        table = pd.DataFrame(
            {
                "pass_start": passes_RE[:, 0],
                "pass_final": passes_RE[:, -1],
                "pass_best": passes_RE.max(axis=1),
                "maj_start": majority_RE[:, 0],
                "maj_final": majority_RE[:, -1],
                "label_final": 100 * self._right_R / self._n_problems,
                "update_norm": self._moved_R / self._scheduled_R,
                "skipped": 100 * self._skipped_R / self._scheduled_R,
            },
            pd.Index(replicates, name="replicate"),
        )
        if self._epochs >= MIN_VISITS:
            table = table.join(self._fates(replicates))
        return table.reindex(columns=list(MEASURES))

    def _fates(self, replicates: NDArray[np.int64]) -> pd.DataFrame:
        found_RN = classify(self._initial_RN / FIRST, self._final_RN / LAST)
        fate = pd.Categorical.from_codes(found_RN.reshape(-1), list(FATES), ordered=True)
        of = np.repeat(replicates, self._n_problems)
        return fate_shares(pd.DataFrame({"replicate": of, "fate": fate}))


def measure_trace(trace: Trace) -> pd.DataFrame:
    """Measures of a trace, for runs whose problems are all visited once an epoch."""
    replicates = trace.replicates
    epochs = int(ints(trace.visits, "epoch").max())
    size = 1 + replicates[-1] - replicates[0]
    tally = Tally(replicates[0], size, trace.run.n_problems, epochs)
    tables = (trace.visits, trace.steps, trace.evals)
    by_epoch = [dict(iter(table.groupby("epoch"))) for table in tables]
    for epoch in range(epochs + 1):
        visits, steps, evals = (_columns(part.get(epoch)) for part in by_epoch)
        tally.add(epoch, visits, steps, evals)
    return tally.table()


def _columns(table: pd.DataFrame | None) -> dict[str, Any]:
    return {} if table is None else {str(name): table[name].to_numpy() for name in table.columns}
