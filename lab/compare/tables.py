"""One table per comparison: arms by metrics, mean and spread over the replicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lab.arms import BASELINE
from lab.columns import floats, group_mean, ints
from lab.compare.collection import Comparison
from lab.compare.effort import update_by_replicate
from lab.measures.fate import FATES, fate_shares
from lab.stats.paired import estimate
from lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of the comparison table."""

    name: str
    title: str
    unit: str
    better: Literal["low", "high", ""]
    """The better direction; empty where there is none."""
    digits: int = 1


_GOOD: dict[str, Literal["low", "high", ""]] = {
    "Stable Always Right": "high",
    "Degraded": "low",
    "Learned": "high",
    "Marginal Degraded": "low",
    "Always Wrong": "low",
}

METRICS = (
    Metric("pass_start", "pass@1 before training", "%", ""),
    Metric("pass_final", "pass@1 at the end", "%", "high"),
    Metric("pass_best", "best pass@1 on the way", "%", "high"),
    Metric("maj_start", "majority vote before training", "%", ""),
    Metric("maj_final", "majority vote at the end", "%", "high"),
    Metric("TotalDeg", "TotalDeg", "% of problems", "low"),
    *(Metric(fate, fate, "% of problems", _GOOD.get(fate, "")) for fate in FATES),
    Metric("L/D", "L/D", "ratio", "high", 3),
    Metric("update", "mean update norm", "% of TTRL's", ""),
    Metric("skipped", "skipped visits", "%", ""),
)
"""All metrics; `pass_best` is chosen with hindsight, from the true answers."""


def metrics(comparison: Comparison) -> pd.DataFrame:
    """Every metric of every replicate, computed once per comparison.

    Returns:
        Indexed by (arm, replicate), one column per entry of `METRICS`, in its unit. NaN where it
        was not measured, as for fates where no true answer is known or a problem of the replicate
        has fewer visits than its fate needs.
    """
    if comparison.metrics is None:
        comparison.metrics = _metrics(comparison)
    return comparison.metrics.copy()


def _metrics(comparison: Comparison) -> pd.DataFrame:
    moved = {arm: update_by_replicate(t.steps) for arm, t in comparison.traces.items()}
    parts = {}
    for arm, trace in comparison.traces.items():
        part = pd.DataFrame(index=pd.Index(trace.replicates, name="replicate"))
        part = part.join([_scores(trace), _skips(trace), fate_shares(comparison.fates(arm))])
        if BASELINE in moved:
            part["update"] = 100.0 * moved[arm] / moved[BASELINE]
        parts[arm] = part
    table = pd.concat(parts, names=["arm", "replicate"])
    return table.reindex(columns=[metric.name for metric in METRICS])


def metrics_of(metrics: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return the metrics of one arm, indexed by replicate; no rows for an arm without any.

    Args:
        metrics: from `metrics`.
        arm: its name.
    """
    chosen = np.flatnonzero(metrics.index.get_level_values("arm") == arm)
    return metrics.take(chosen).droplevel("arm")


def comparison_table(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean, spread and number of replicates of every metric of every arm.

    Args:
        metrics: from `metrics`.

    Returns:
        Indexed by arm, columns (metric, "mean" | "sd" | "n"); NaN does not count, and `sd` is NaN
        for a single replicate.
    """
    rows = {}
    for arm, part in metrics.groupby("arm", sort=False):
        found = {name: estimate(floats(part, name)) for name in part.columns}
        rows[arm] = {
            (name, what): getattr(found[name], what)
            for name in found
            for what in ("mean", "sd", "n")
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(index="arm")
    table.columns = pd.MultiIndex.from_tuples(list(table.columns), names=["metric", "value"])
    return table


def _scores(trace: Trace) -> pd.DataFrame:
    """First, last and best evaluation of each replicate, in percent."""
    evals = trace.evals.take(np.argsort(ints(trace.evals, "step"), kind="stable"))
    before = ints(evals, "step") == 0
    by_replicate = evals.groupby("replicate")
    start = evals[before].groupby("replicate")
    # `last` passes over NaN: the majority vote is not measured at every evaluation.
    found = {
        "pass_start": start["pass_at_1"].last(),
        "pass_final": by_replicate["pass_at_1"].last(),
        "pass_best": by_replicate["pass_at_1"].max(),
        "maj_start": start["maj_accuracy"].last(),
        "maj_final": by_replicate["maj_accuracy"].last(),
    }
    return 100.0 * pd.DataFrame(found)


def _skips(trace: Trace) -> pd.DataFrame:
    """Share of the visits of training that were skipped, in percent."""
    replicate = ints(trace.visits, "replicate")
    training = ints(trace.visits, "visit") > 0
    skipped = np.where(training, floats(trace.visits, "skipped"), np.nan)
    shares = group_mean(skipped, replicate, 1 + replicate.max())
    return pd.DataFrame({"skipped": 100.0 * shares}).rename_axis("replicate")
