"""The metrics of a run, once: name, meaning, unit, how they are computed and how they are printed.

The report, Markdown, CSV, the terminal's tables, sweeps and figures read `METRICS`. A metric of
the page is computed from a trace (`measured`); one of the simulator's sweeps is summed up while a
run goes on (`Tally`), since a sweep needs a few numbers per replicate, not the hundreds of
thousands of rows that they come from. Both are the same number in the same unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.base.columns import floats, group_mean, ints, require
from lab.measures.fate import FATES, FIRST, LAST, MIN_VISITS, classify, fate_shares
from lab.trace.trace import Trace

Better = Literal["low", "high", ""]
Place = Literal["page", "tally", "window"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per replicate of an arm."""

    name: str
    title: str
    unit: str
    better: Better = ""
    """The better direction; empty where there is none."""
    digits: int = 1
    at: tuple[Place, ...] = ("page", "tally")
    """`page`: report, Markdown and CSV; `tally`: sweeps; `window`: the extinction window's table,
    computed by `lab.measures.dynamics.run_windows`."""
    noun: str = ""
    """Name in a sentence or a difference, if it is another than the title."""
    brief: str = ""
    """Heading on the report's first screen; empty for those that are not there."""
    head: str = ""
    """Heading in the terminal; empty for those that are not printed there."""
    about: str = ""
    """What the terminal says below its table of a heading that is short."""

    @property
    def called(self) -> str:
        """Name in a sentence or a difference."""
        return self.noun or self.title

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})"


def _fate(name: str, better: Better, head: str = "", about: str = "") -> Metric:
    return Metric(name, name, "% of problems", better, head=head or name, about=about)


_WINDOW: tuple[Place, ...] = ("window",)
METRICS = (
    Metric(
        "pass_start", "pass@1 before training", "%", brief="pass@1 before (%)",
        head="start", about="pass@1 before training",
    ),
    Metric(
        "pass_final", "pass@1 at the end", "%", "high", noun="final pass@1",
        brief="at the end (%)", head="pass@1", about="at the end",
    ),
    Metric(
        "pass_best", "best pass@1 on the way", "%", "high",
        head="best", about="pass@1 at its highest, chosen with hindsight",
    ),
    Metric("maj_start", "majority vote before training", "%"),
    Metric(
        "maj_final", "majority vote at the end", "%", "high", noun="final majority vote",
        head="maj", about="right majority votes at the end",
    ),
    Metric("label_final", "labels right at the end", "%", "high", at=("tally",)),
    Metric(
        "TotalDeg", "TotalDeg", "% of problems", "low", brief="problems made worse (%)",
        head="TotalDeg", about="Degraded and MargDeg",
    ),
    _fate("Stable Always Right", "high", "Stable", "Stable Always Right"),
    _fate("Degraded", "low"),
    _fate("Learned", "high"),
    _fate("Marginal Degraded", "low", "MargDeg", "Marginal Degraded"),
    _fate("Marginal Stable", "", "MargStab", "Marginal Stable"),
    _fate("Always Wrong", "low", "Wrong", "Always Wrong"),
    _fate("Unclassified", "", "Unclass", "Unclassified"),
    Metric(
        "L/D", "L/D", "ratio", "high", 3,
        head="L/D", about="Learned by Degraded, - where none degraded",
    ),
    Metric("update", "mean update norm", "% of TTRL's", at=("page",)),
    Metric(
        "update_norm", "mean update norm", "L2 norm", digits=4, at=("tally",),
        head="update", about="mean norm of the logits' change",
    ),
    Metric("skipped", "skipped visits", "%", head="skipped", about="visits without training"),
    Metric("unread", "responses without a readable answer", "%", "low", at=("page",)),
    Metric("fr_peak", "highest flip rate of an epoch", "% of problems", at=_WINDOW),
    Metric("peak", "flip rate peaks", "epoch", at=_WINDOW),
    Metric("collapse", "flip rate collapses", "epoch", at=_WINDOW),
    Metric("drop", "pass@1 drops for good", "epoch", at=_WINDOW),
    Metric("lead", "from the collapse to the drop", "epochs", at=_WINDOW),
)  # fmt: skip
"""In the order of all tables."""
BY_NAME = {metric.name: metric for metric in METRICS}
PAGE = tuple(metric for metric in METRICS if "page" in metric.at)
WINDOW = tuple(metric for metric in METRICS if "window" in metric.at)
MEASURES = tuple(metric.name for metric in METRICS if "tally" in metric.at)
"""Names of those of a sweep. Fates are NaN in runs that are too short to have them."""


def measured(trace: Trace, fates: pd.DataFrame) -> pd.DataFrame:
    """Metrics of the page but `update`, one row per replicate of a trace; NaN without fates."""
    table = pd.DataFrame(index=pd.Index(trace.replicates, name="replicate"))
    return table.join([_scores(trace), _visit_shares(trace), fate_shares(fates)])


def _scores(trace: Trace) -> pd.DataFrame:
    evals = trace.evals.take(np.argsort(ints(trace.evals, "step"), kind="stable"))
    start = evals[ints(evals, "step") == 0].groupby("replicate")
    every = evals.groupby("replicate")
    # `last` passes over NaN: the majority vote is not measured at every evaluation.
    found = {
        "pass_start": start["pass_at_1"].last(),
        "pass_final": every["pass_at_1"].last(),
        "pass_best": every["pass_at_1"].max(),
        "maj_start": start["maj_accuracy"].last(),
        "maj_final": every["maj_accuracy"].last(),
    }
    return 100.0 * pd.DataFrame(found)


def _visit_shares(trace: Trace) -> pd.DataFrame:
    """Shares in percent: of training visits that were skipped, of votes without an answer."""
    replicate = ints(trace.visits, "replicate")
    training = ints(trace.visits, "visit") > 0
    skipped = np.where(training, floats(trace.visits, "skipped"), np.nan)
    size = 1 + replicate.max()
    votes = np.bincount(replicate, floats(trace.visits, "n_votes"), size)
    unread = np.bincount(replicate, floats(trace.visits, "n_unparseable"), size)
    unread = np.divide(unread, votes, np.full(size, np.nan), where=votes > 0)
    shares = {"skipped": group_mean(skipped, replicate, size), "unread": unread}
    return 100.0 * pd.DataFrame(shares).rename_axis("replicate")


def update_by_replicate(steps: pd.DataFrame) -> pd.Series:
    """Mean norm of the update per scheduled optimizer step, indexed by replicate."""
    require(steps, ("replicate", "update_norm", "n_problems"), "matched effort")
    norms, sizes = floats(steps, "update_norm"), floats(steps, "n_problems")
    replicates, place = np.unique(ints(steps, "replicate"), return_inverse=True)
    total = np.bincount(place, norms * sizes, len(replicates))
    means = total / np.bincount(place, sizes, len(replicates))
    return pd.Series(means, pd.Index(replicates, name="replicate"), name="update_norm")


Rows = Mapping[str, Any]


class Tally:
    """Sums over a run's epochs, in which every problem is visited once: `MEASURES`."""

    def __init__(self, first_replicate: int, replicates: int, n_problems: int, epochs: int) -> None:
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
            found_RN = classify(self._initial_RN / FIRST, self._final_RN / LAST)
            fate = pd.Categorical.from_codes(found_RN.reshape(-1), list(FATES), ordered=True)
            of = np.repeat(replicates, self._n_problems)
            table = table.join(fate_shares(pd.DataFrame({"replicate": of, "fate": fate})))
        return table.reindex(columns=list(MEASURES))


def measure_trace(trace: Trace) -> pd.DataFrame:
    """Measures of a trace, for runs whose problems are all visited once an epoch."""
    replicates, epochs = trace.replicates, int(ints(trace.visits, "epoch").max())
    size = 1 + replicates[-1] - replicates[0]
    tally = Tally(replicates[0], size, trace.run.n_problems, epochs)
    tables = (trace.visits, trace.steps, trace.evals)
    by_epoch = [dict(iter(table.groupby("epoch"))) for table in tables]
    for epoch in range(epochs + 1):
        parts = [part.get(epoch, pd.DataFrame()) for part in by_epoch]
        tally.add(epoch, *({str(n): part[n].to_numpy() for n in part} for part in parts))
    return tally.table()
