"""The metrics of a comparison: one table, three findings, and every arm over step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, GUARD, MATCHED, VOTE, title, trains
from lab.base.columns import finite_mean, floats, groups, select, unique, where
from lab.base.errors import UserError
from lab.base.stats import Estimate, counted, estimate, interval_of, paired
from lab.base.stats import difference as difference_text
from lab.compare import effort
from lab.compare.collection import Comparison
from lab.compare.effort import METRIC
from lab.measures import PAGE, measured, right_at_the_end, update_by_replicate
from lab.measures.dynamics import dynamics, run_windows
from lab.trace.trace import Trace

_VOTE_SCORES = ("maj_start", "maj_final", "pass_final", "label_final")
RIVALS = ("frozen", "memory")
"""The simplest rivals of a guard (docs/method.md)."""
SHOWN = ("pass_final", "gain", "against", "vote", "effort", "label_final", "TotalDeg", "Learned")
"""Columns of the table that are estimates."""


def metrics(comparison: Comparison) -> pd.DataFrame:
    """Every metric of every replicate, computed once per comparison.

    Returns:
        Indexed by (arm, replicate), one column per entry of `lab.measures.PAGE`, in its
        unit. NaN where it was not measured, as for fates where no true answer is known or a
        problem of the replicate has fewer visits than its fate needs.
    """
    if comparison.metrics is None:
        moved = {arm: update_by_replicate(t.steps) for arm, t in comparison.traces.items()}
        parts = {arm: measured(t, comparison.fates(arm)) for arm, t in comparison.traces.items()}
        for arm in parts if BASELINE in moved else ():
            base = moved[BASELINE]
            parts[arm]["update"] = 100.0 * moved[arm] / base.where(base > 0)
        table = pd.concat(parts, names=["arm", "replicate"])
        comparison.metrics = table.reindex(columns=[metric.name for metric in PAGE])
    return comparison.metrics.copy()


def metrics_of(metrics: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return the metrics of one arm, indexed by replicate; no rows for an arm without any."""
    return metrics[metrics.index.get_level_values("arm") == arm].droplevel("arm")


def with_vote(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the rows, and before them the vote before training as if it were an arm, `VOTE`.

    Its scores are those of a vote: `pass_final`, `maj_final` and `label_final` are `maj_start`, the
    percentage of problems whose majority of V votes of the start model is right, a tie counted by
    its share. All else is NaN.

    Args:
        rows: columns arm, maj_start, scores and `by`; without maj_start they are returned alone.
        by: columns that name a replicate and its settings. Arms that agree in them started alike.
    """
    if "maj_start" not in rows:
        return rows
    known = select(rows, np.isfinite(floats(rows, "maj_start"))).drop_duplicates([*by])
    scores = {name: known["maj_start"] for name in _VOTE_SCORES if name in rows}
    vote = pd.DataFrame({name: known[name] for name in by}).assign(arm=VOTE, **scores)
    return pd.concat([vote, rows], ignore_index=True)[[*rows.columns]] if len(vote) else rows


def comparison_table(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean, spread and number of replicates of every metric, indexed by arm.

    Columns are (metric, "mean" | "sd" | "n"); NaN does not count, `sd` of a single one is NaN.
    """
    table = metrics.groupby("arm", sort=False).agg(["mean", "std", "count"])
    table = table.rename(columns={"std": "sd", "count": "n"}, level=1)
    return table.rename_axis(columns=["metric", "value"])


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a finding."""

    label: str
    value: Estimate
    text: str
    """The number, its interval and what it shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One of the numbers that matter."""

    key: str
    title: str
    parts: tuple[Quantity, ...]
    note: str = ""
    """Origin of the number, or the reason why there is none."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        numbers = "; ".join(part.text for part in self.parts) or "not measured"
        return f"{self.title}: {numbers}" + (f" ({self.note})" if self.note else "")


def headline(comparison: Comparison) -> list[Finding]:
    """TTRL's degradation, the guard's gain over matched effort, and a rival's over the guard.

    A finding whose arms are missing says so.
    """
    table, guard = metrics(comparison), title(GUARD)
    return [
        Finding("damage", f"Problems that {title(BASELINE)} makes worse", *_damage(table)),
        Finding("guard", f"What {guard} saves beyond matched effort", *_guard(comparison, table)),
        Finding("rival", f"What the best simple rival saves beyond {guard}", *_rival(table)),
    ]


def _damage(table: pd.DataFrame) -> tuple[tuple[Quantity, ...], str]:
    if lacking := _lacking(table, BASELINE):
        return (), lacking
    value = estimate(floats(metrics_of(table, BASELINE), "TotalDeg"))
    text = f"TotalDeg {value.mean:.1f} % [{interval_of(value, 'replicate', signed=False)}]"
    return ((Quantity("TotalDeg", value, text),) if value.n else ()), ""


def _guard(comparison: Comparison, table: pd.DataFrame) -> tuple[tuple[Quantity, ...], str]:
    if lacking := _lacking(table, GUARD, MATCHED):
        return (), lacking
    guard, matched = metrics_of(table, GUARD), metrics_of(table, MATCHED)
    both, note = guard.index.intersection(matched.index), ""
    try:
        if len(both):
            of_arms = [comparison.traces[arm].steps for arm in (MATCHED, GUARD)]
            means = [effort.mean_update(s[s["replicate"].isin(both)]) for s in of_arms]
            ratio = effort.achieved_ratio(matched=means[0], guard=means[1])
            note = f"the matched run moved {ratio:.2f} times as far as the guard's"
    except UserError as error:
        note = str(error)
    return _saved(guard, matched), note


def _rival(table: pd.DataFrame) -> tuple[tuple[Quantity, ...], str]:
    there = [arm for arm in RIVALS if arm in table.index.unique("arm")]
    if lacking := _lacking(table, GUARD) or ("" if there else _lacking(table, *RIVALS)):
        return (), lacking
    guard = metrics_of(table, GUARD)
    if len(there) == 1:
        saved = _saved(metrics_of(table, there[0]), guard)
        return saved, f"{title(there[0])}, the only rival run"
    # Only replicates that are compared may choose.
    rows = pd.concat({arm: metrics_of(table, arm) for arm in there}, names=["arm"]).reset_index()
    rows = select(rows, rows["replicate"].isin(guard.index))
    by, kept = "lower TotalDeg", -rows["TotalDeg"]
    if kept.isna().all():  # as where no run is long enough for fates
        by, kept = "higher final pass@1", rows["pass_final"]
    best = effort.best_among(rows.assign(kept=kept), there, [], "kept")
    chosen = " and ".join(
        f"{title(arm)} in {counted(len(part), 'pair')}" for (arm,), part in groups(best, ["arm"])
    )
    how = f"each half of the seeds has the rival of {by} on the other half"
    if len(best) == 1:
        how = f"the rival of {by} on this seed, chosen with hindsight"
    return _saved(best.set_index("replicate"), guard), f"{chosen}; {how}" if chosen else ""


def _saved(first: pd.DataFrame, against: pd.DataFrame) -> tuple[Quantity, ...]:
    """Return how much less an arm degrades and how much more it scores; above zero is better."""
    fewer = paired(pd.Series(against["TotalDeg"]), pd.Series(first["TotalDeg"]))
    higher = paired(pd.Series(first[METRIC]), pd.Series(against[METRIC]))
    parts = []
    for label, value in (("TotalDeg saved", fewer), ("final pass@1 gained", higher)):
        numbers = f" {value.mean:+.1f} points [{interval_of(value, 'pair')}]"
        text = f"{numbers}, {value.shows('better', 'worse')}"
        text = text if value.n else ": no pair of the same seed has it"
        parts.append(Quantity(label, value, label + text))
    return tuple(parts)


def _lacking(table: pd.DataFrame, *arms: str) -> str:
    missing = [title(arm) for arm in arms if arm not in table.index.unique("arm")]
    return f"no run of {' or '.join(missing)}" if missing else ""


def over_steps(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every metric of every run of comparisons of one task, one per step size.

    Returns:
        One row per arm, step size (NaN where it was not noted) and replicate: arm, step,
        replicate (one number for a seed and its place at all step sizes), seed, place, the metrics
        of `lab.measures.PAGE` in their units, and the window of
        `lab.measures.dynamics.run_windows`: `fr_peak` (%), `collapse`, `drop`, `lead` (epochs).
    """
    parts = []
    for comparison in comparisons:
        table, step = metrics(comparison), comparison.step_size
        for arm, trace in comparison.traces.items():
            window = run_windows(dynamics(trace.visits, trace.evals)).drop(columns="peak")
            values = metrics_of(table, arm).join(window)
            pairs = pd.DataFrame(comparison.pairs, columns=["seed", "place"]).loc[values.index]
            keys = {"arm": arm, "step": np.nan if step is None else step, **pairs}
            parts.append(pd.DataFrame(keys).join(values).reset_index(drop=True))
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(replicate=rows.groupby(["seed", "place"]).ngroup())


def difference(rows: pd.DataFrame, first: str, second: str, metric: str) -> Estimate:
    """The mean of first - second of one metric, over the seeds that both arms have one row of."""
    of_arm = [where(rows, arm=arm).set_index("replicate") for arm in (first, second)]
    return paired(*(pd.Series(table[metric], dtype=float) for table in of_arm))


def gap(rows: pd.DataFrame, arm: str, base: str, metric: str, *, starred: bool = False) -> str:
    """`difference` as text; empty for no pair, and for an arm minus itself."""
    if arm == base:
        return ""
    return difference_text(difference(rows, arm, base, metric), starred=starred)


def rule_rows(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """`over_steps` with `update_norm`, `label_final` and `seconds`, NaN where not measured.

    They are % of problems whose label is right at the last visit, and the median of a step.
    """
    traces = [trace for comparison in comparisons for trace in comparison.traces.values()]
    columns = pd.concat([facts(trace) for trace in traces], ignore_index=True)
    return pd.concat([over_steps(comparisons), columns], axis=1)


def rule_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Every arm of `rule_rows` at its own best step size, chosen without the seeds that judge it.

    Returns:
        One row per arm, best final pass@1 first: arm, n (seeds), steps (the chosen step sizes,
        comma separated), edge (`smallest`, `largest` where one of them ends the grid), and as
        `lab.base.stats.Estimate` over seeds: pass_final (%), gain (over the start, points),
        against (minus the baseline at its own best, points), vote (minus the vote before training,
        points), effort (minus the baseline at an equal update norm, points), label_final (% of
        labels right at the end), TotalDeg and Learned (% of problems); update (mean update norm by
        that of the baseline at its own best), seconds (a step's, by the baseline's at that size).
    """
    base = where(rows, arm=BASELINE)
    of_step = {s: finite_mean(where(base, step=s), "seconds") for s in unique(base, "step")}
    below = np.array([of_step.get(step, np.nan) for step in floats(rows, "step")])
    rows = rows.assign(
        gain=floats(rows, METRIC) - floats(rows, "pass_start"),
        effort=effort.beyond_effort(rows, METRIC),
        seconds=floats(rows, "seconds") / below,
    )
    rows = with_vote(rows, ["replicate"])  # it is the same at every step
    best = effort.own_best(rows, ["step"])
    scores = {arm: floats(part, METRIC).mean() for (arm,), part in groups(best, ["arm"])}
    ranked = sorted(scores, key=lambda arm: -scores[arm])
    return pd.DataFrame([_line(rows, best, arm) for arm in ranked])


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column per number: an estimate `x` is `x`, `x_sd`, `x_low`, `x_high`."""
    columns: dict[str, list[object]] = {}
    for name in table.columns:
        values = table[name].tolist()
        if values and isinstance(values[0], Estimate):
            for end, part in (("", "mean"), ("_sd", "sd"), ("_low", "low"), ("_high", "high")):
                columns[f"{name}{end}"] = [getattr(value, part) for value in values]
        else:
            columns[str(name)] = values
    return pd.DataFrame(columns)


def _line(rows: pd.DataFrame, best: pd.DataFrame, arm: str) -> dict[str, object]:
    chosen = where(best, arm=arm)
    grid = unique(where(rows, arm=arm), "step")
    steps = sorted(unique(chosen, "step"))
    bases = {"against": BASELINE, "vote": VOTE}
    gaps = {name: difference(best, arm, base, METRIC) for name, base in bases.items()}
    moved = finite_mean(where(best, arm=BASELINE), "update_norm")
    return {
        "arm": arm,
        "n": len(chosen),
        "steps": ", ".join(f"{step:g}" for step in steps if trains(arm)),
        "edge": ", ".join(side for *_, side in effort.edges(chosen, grid) if trains(arm)),
        **{name: gaps.get(name) or estimate(floats(chosen, name)) for name in SHOWN},
        "update": finite_mean(chosen, "update_norm") / moved if moved else np.nan,
        "seconds": finite_mean(chosen, "seconds"),
    }


def facts(trace: Trace) -> pd.DataFrame:
    """`update_norm`, `seconds` and `label_final` of `rule_rows`, one row per replicate in order."""
    times = trace.steps.reindex(columns=["replicate", "seconds_step"]).groupby("replicate")
    table = update_by_replicate(trace.steps).to_frame()
    table["seconds"] = times["seconds_step"].median()
    # A killed run may have written visits and no step.
    return table.reindex(trace.replicates).assign(label_final=right_at_the_end(trace))
