"""The metrics of a run, once: name, meaning, unit, how they are computed and how they are printed.

All tables and figures read `METRICS`. A metric of the page is computed from a trace (`measured`);
one of the simulator's sweeps is summed up while a run goes on (`sim.engine.run.measure`), which
keeps no rows. Both are the same number in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lab.base.arms import trains
from lab.base.columns import floats, ints, require
from lab.measures.fate import fate_shares
from lab.trace.schema import names
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
    head: str = ""
    """Heading in the terminal; empty for those that are not printed there."""
    about: str = ""
    """What the terminal says below its table of a heading that is short."""

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})"


def _fate(name: str, better: Better, head: str = "", about: str = "") -> Metric:
    return Metric(name, name, "% of problems", better, head=head or name, about=about)


_WINDOW: tuple[Place, ...] = ("window",)
METRICS = (
    Metric(
        "pass_start", "pass@1 before training", "%", head="start", about="pass@1 before training",
    ),
    Metric("pass_final", "pass@1 at the end", "%", "high", head="pass@1", about="at the end"),
    Metric(
        "pass_best", "best pass@1 on the way", "%", "high",
        head="best", about="pass@1 at its highest, chosen with hindsight",
    ),
    Metric("maj_start", "majority vote before training", "%"),
    Metric(
        "maj_final", "majority vote at the end", "%", "high",
        head="maj", about="right majority votes at the end",
    ),
    Metric("held_out_final", "held-out pass@1 at the end", "%", "high", at=("page",)),
    Metric(
        "held_out_gain", "held-out pass@1 minus the held-out vote before training", "points",
        "high", at=("page",),
    ),
    Metric("label_final", "labels right at the end", "%", "high", at=("tally",)),
    _fate("TotalDeg", "low", about="Degraded and MargDeg"),
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
    """Metrics of the page but `update`, one row per replicate of a trace; NaN without fates.

    An arm that trains nothing is scored by its vote: `pass_final` is that of `right_at_the_end`.
    """
    training = trace.visits.loc[trace.visits["visit"] > 0, ["replicate", "skipped"]]
    skipped = training.groupby("replicate")["skipped"].mean()
    votes = trace.visits.groupby("replicate")[["n_unparseable", "n_votes"]].sum()
    unread = votes["n_unparseable"] / votes["n_votes"]
    shares = 100.0 * pd.DataFrame({"skipped": skipped, "unread": unread})
    table = pd.DataFrame(index=pd.Index(trace.replicates, name="replicate"))
    table = table.join([_scores(trace), shares, fate_shares(fates)])
    return table if trains(trace.run.arm) else table.assign(pass_final=right_at_the_end(trace))


def right_at_the_end(trace: Trace) -> pd.Series:
    """Percent of the problems whose last label is right, by replicate; NaN without truth."""
    visits = trace.visits.sort_values("visit", kind="stable")
    last = visits.drop_duplicates(["replicate", "problem"], keep="last")
    right = last["label_correct"].astype(float).where(last["label_accuracy"].notna())
    return 100.0 * right.groupby(last["replicate"]).mean()


def _scores(trace: Trace) -> pd.DataFrame:
    evals = trace.evals.reindex(columns=list(names("evals")))
    evals = evals.take(np.argsort(ints(evals, "step"), kind="stable"))
    start = evals[ints(evals, "step") == 0].groupby("replicate")
    every = evals.groupby("replicate")
    # Not `last`, which passes over NaN: a killed run's last majority vote is that of its start.
    final = every.tail(1).set_index("replicate")
    held_out = every["held_out_pass_at_1"].last()
    scores = {
        "pass_start": start["pass_at_1"].last(),
        "pass_final": every["pass_at_1"].last(),
        "pass_best": every["pass_at_1"].max(),
        "maj_start": start["maj_accuracy"].last(),
        "maj_final": final["maj_accuracy"],
        "held_out_final": held_out,
        "held_out_gain": held_out - start["held_out_maj_accuracy"].last(),
    }
    return 100.0 * pd.DataFrame(scores)


def update_by_replicate(steps: pd.DataFrame) -> pd.Series:
    """Mean norm of the update per scheduled optimizer step, indexed by replicate."""
    require(steps, ("replicate", "update_norm", "n_problems"), "matched effort")
    norms, sizes = floats(steps, "update_norm"), floats(steps, "n_problems")
    replicates, place = np.unique(ints(steps, "replicate"), return_inverse=True)
    means = np.bincount(place, norms * sizes) / np.bincount(place, sizes)
    return pd.Series(means, pd.Index(replicates, name="replicate"), name="update_norm")
