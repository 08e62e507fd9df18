"""Course of a run: means per epoch, extinction window (docs/method.md, section 11), step times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from guard_core.config import ROUNDING
from lab.base.arms import BASELINE
from lab.base.columns import Bools, Floats, Ints, floats, group_mean, ints, require
from lab.base.errors import UserError
from lab.measures.fate import LOST, histories, of_fate
from lab.measures.problems import PAPER_FATES
from lab.trace.schema import ROUTES, names

ROUTE_COLUMNS = {code: f"route_{name.lower().replace(' ', '_')}" for code, name in ROUTES.items()}
"""Route code to the column of its share."""

SCORES = ("pass_at_1", "maj_accuracy")

_AT_START = {"match_rate", "label_accuracy", "correct_vote_rate", "correct_vote_rate_lost"}
"""Known before training. All else is not: no visit has been made, so no guard has spoken."""
DROP = 0.02
"""Fall of pass@1 below its running maximum that counts as a drop."""
PHASES = {
    "seconds_rollout": "Sampling",
    "seconds_further": "Further sampling",
    "seconds_grade": "Reading answers",
    "seconds_guard": "Guard",
    "seconds_update": "Update",
    "seconds_sync": "Handing over weights",
}
"""Column of the steps to the name shown to readers."""
OTHER, STEP = "Other", "Whole step"
WARM_UP = 1
"""First steps that are left out: they compile, allocate and fill caches."""


def dynamics(
    visits: pd.DataFrame, evals: pd.DataFrame | None = None, fates: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Means over the problems that were visited in an epoch, all as shares from 0 to 1.

    Args:
        evals: a trace's evaluations; without them `pass_at_1` and `maj_accuracy` are NaN.
        fates: from `lab.fates`; without them `correct_vote_rate_lost`, over the problems that
            training made worse, is NaN (the paper's figure counts Always Wrong problems instead of
            Marginal Degraded ones).

    Returns:
        One row per replicate and epoch; epoch 0 is before training, where the guard's columns are
        NaN. `progress` is the epoch by the replicate's last epoch. `flip_rate` is the run-level
        flip rate: the share of problems whose label changed since their last visit, NaN in a last
        epoch that is not whole; `mean_problem_flip_rate` is the mean of the problems' windowed
        rates. `correct_vote_rate` is the share of visits whose label is the true answer.
        `weighted_share`, `minority_share` and `skipped` are shares of visits with a weight below
        1, with a minority candidate, and left out; `route_*` are shares of visits. `pass_at_1`
        and `maj_accuracy` are those of the last evaluation in the epoch.

    Raises:
        UserError: a column is missing, or there are no visits.
    """
    require(visits, names("visits", required=True), "dynamics")
    if visits.empty:
        raise UserError("dynamics: there are no visits; give a run that has trained")
    tables = [visits]
    if evals is not None:
        require(evals, ("replicate", "step", "epoch", *SCORES), "dynamics")
        tables.append(evals)
    width = 1 + max(ints(table, "epoch").max(initial=0) for table in tables)

    def key(table: pd.DataFrame) -> Ints:
        """One number per replicate and epoch."""
        return ints(table, "replicate") * width + ints(table, "epoch")

    keys = np.unique(np.concatenate([key(table) for table in tables]))
    replicate, epoch = keys // width, keys % width
    columns = _per_visit(visits)
    is_lost = np.zeros(len(visits), bool) if fates is None else of_fate(visits, fates, LOST)
    columns["correct_vote_rate_lost"] = np.where(is_lost, columns["correct_vote_rate"], np.nan)
    row = np.searchsorted(keys, key(visits))
    means = {name: group_mean(values, row, len(keys)) for name, values in columns.items()}
    for name in means.keys() - _AT_START:
        means[name][epoch == 0] = np.nan
    # Keys are sorted, so a replicate's last epoch stands last.
    last = epoch[np.searchsorted(replicate, replicate, side="right") - 1]
    # That of a batch or two would move the peak, or undo the collapse, of a run that goes on.
    visited = np.bincount(row, minlength=len(keys))
    is_cut = (epoch == last) & (epoch > 1) & (visited < np.roll(visited, 1))
    means["flip_rate"][is_cut] = np.nan
    means |= dict.fromkeys(SCORES, np.nan)
    progress = epoch / np.maximum(last, 1)
    table = pd.DataFrame({"replicate": replicate, "epoch": epoch, "progress": progress, **means})
    if evals is not None:
        ordered = evals.take(np.argsort(ints(evals, "step"), kind="stable"))
        # `last` passes over NaN: not every score is measured at every evaluation.
        scores = ordered.groupby(key(ordered))[list(SCORES)].last().reindex(keys)
        table[list(SCORES)] = scores.to_numpy(np.float64)
    return table


def _per_visit(visits: pd.DataFrame) -> dict[str, Floats]:
    """(rows,) per quantity that an epoch's row is the mean of; NaN where it is not known."""
    accuracy, correct = floats(visits, "label_accuracy"), floats(visits, "label_correct")
    weight, route = floats(visits, "weight"), ints(visits, "route")
    columns = {
        "flip_rate": floats(visits, "flipped"),
        "mean_problem_flip_rate": floats(visits, "flip_rate"),
        "match_rate": floats(visits, "match_rate"),
        "label_accuracy": accuracy,
        "correct_vote_rate": np.where(np.isnan(accuracy), np.nan, correct),
        "weight": weight,
        "weighted_share": (weight < 1).astype(np.float64),
        "beta": floats(visits, "beta"),
        "skipped": floats(visits, "skipped"),
        "minority_share": (ints(visits, "n_minority") > 0).astype(np.float64),
    }
    return columns | {n: (route == code).astype(np.float64) for code, n in ROUTE_COLUMNS.items()}


def run_windows(dynamics: pd.DataFrame) -> pd.DataFrame:
    """Peak and collapse of the flip rate, and the drop of pass@1, per run.

    Returns:
        Indexed by replicate: `fr_peak` (percent) and `peak` (its first epoch), `collapse` (first
        epoch after the peak from which FR stays below half of the peak), `drop` (first epoch from
        which pass@1 stays 2 points below its running maximum), `lead` = drop - collapse, in
        epochs. NaN where it did not happen; without any flip there is no peak and no collapse.
    """
    require(dynamics, ("replicate", "epoch", "flip_rate", "pass_at_1"), "extinction window")
    ordered = dynamics.take(np.argsort(ints(dynamics, "epoch"), kind="stable"))
    windows = [(replicate, *_window(run)) for replicate, run in ordered.groupby("replicate")]
    columns = ["replicate", "fr_peak", "peak", "collapse", "drop", "lead"]
    return pd.DataFrame(windows, columns=columns).set_index("replicate")


def _window(run: pd.DataFrame) -> tuple[float, ...]:
    epochs, rates, scores = ints(run, "epoch"), floats(run, "flip_rate"), floats(run, "pass_at_1")
    measured = np.isfinite(scores)
    scores = scores[measured]
    low = scores <= np.maximum.accumulate(scores) - DROP + ROUNDING
    drop = _first_for_good(low, epochs[measured])
    known = np.isfinite(rates)
    rates, epochs = rates[known], epochs[known]
    if not rates.max(initial=0.0) > 0:
        return 0.0 if len(rates) else np.nan, np.nan, np.nan, drop, np.nan
    peak = int(rates.argmax())
    collapse = _first_for_good((rates < rates[peak] / 2)[peak:], epochs[peak:])
    return 100.0 * rates[peak], float(epochs[peak]), collapse, drop, drop - collapse


def _first_for_good(holds: Bools, epochs: Ints) -> float:
    """First epoch from which a condition holds to the end, NaN if there is none."""
    broken = np.flatnonzero(~holds)
    first = int(broken[-1]) + 1 if len(broken) else 0
    return float(epochs[first]) if first < len(holds) else np.nan


def window_share(dynamics: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Share of the replicates between the peak of FR and its collapse.

    Args:
        windows: from `run_windows`, of the same arm. A window that never collapsed is open to the
            end; a run without any flip never has one.

    Returns:
        One row per epoch from 1 on: epoch, progress, share (0 to 1; of the replicates whose window
        is open, from the peak's epoch up to before the collapse's), n (replicates).

    Raises:
        UserError: a replicate of the dynamics has no window.
    """
    require(dynamics, ("replicate", "epoch", "progress"), "extinction window")
    require(windows, ("peak", "collapse"), "extinction window")
    if lacking := sorted(set(dynamics["replicate"]) - set(windows.index)):
        raise UserError(
            f"extinction window: no window of replicate {lacking[0]}; give both tables of one run"
        )
    rows = dynamics[dynamics["epoch"] > 0]
    of_row, epoch = windows.loc[rows["replicate"]], floats(rows, "epoch")
    peak, collapse = floats(of_row, "peak"), floats(of_row, "collapse")
    # Any comparison with NaN is false: no peak is no window, no collapse is an open end.
    is_open = (epoch >= peak) & ~(epoch >= collapse)
    grouped = rows.assign(share=is_open.astype(np.float64)).groupby("epoch", as_index=False)
    return grouped.agg(progress=("progress", "mean"), share=("share", "mean"), n=("share", "count"))


def window_width(visits: pd.DataFrame, fates: pd.DataFrame) -> pd.DataFrame:
    """Share of a Degraded problem's visits up to which its true answer held a quarter of the votes.

    Returns:
        One row per replicate that has such problems: replicate, window (mean over them, 0 to 1).
    """
    needed = ("replicate", "problem", "visit", "label_accuracy", "correct_competitive")
    require(visits, needed, "extinction window")
    known = np.isfinite(floats(visits, "label_accuracy"))
    past = histories(visits, known & of_fate(visits, fates, PAPER_FATES))
    rows = visits.take(past.order).assign(history=past.number)
    rows["window"] = np.where(rows["correct_competitive"], past.visit + 1, 0)
    rows["window"] /= past.length[past.number]
    last = rows.groupby(["replicate", "history"])["window"].max()
    return last.groupby("replicate").mean().reset_index()


def step_seconds(steps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean seconds per step and phase of every arm, and their share of the baseline's step.

    Args:
        steps: arm to a trace's steps, all from one machine; a replicate is one seed in each.

    Returns:
        One row per arm, replicate and phase (names of `PHASES`, `OTHER` for what none of them
        covers, `STEP` for the whole): arm, replicate, phase, seconds, relative (percent of the
        baseline's whole step of the same replicate; NaN where the baseline lacks it).

    Raises:
        UserError: the baseline is not there, its clock was not read, or a replicate has no more
            steps than the warm-up.
    """
    if BASELINE not in steps:
        raise UserError(f"overhead: no run of {BASELINE}; give one on the same machine")
    clock = "seconds_step"
    timed = [n for n, t in steps.items() if clock in t and np.isfinite(floats(t, clock)).any()]
    if BASELINE not in timed:
        raise UserError(f"overhead: {BASELINE} has no seconds_step; only real runs are timed")
    measured = {arm: _seconds(steps[arm], arm) for arm in timed}
    base = measured[BASELINE][STEP]
    parts = []
    for arm, table in measured.items():
        long = table.reset_index().melt("replicate", var_name="phase", value_name="seconds")
        whole = base.reindex(long["replicate"]).to_numpy(np.float64)
        parts.append(long.assign(arm=arm, relative=100 * floats(long, "seconds") / whole))
    columns = ["arm", "replicate", "phase", "seconds", "relative"]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns)


def _seconds(steps: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Mean seconds, replicates down and phases across."""
    require(steps, ("replicate", "step"), "overhead")
    rank = steps.groupby("replicate")["step"].rank(method="first")
    warm = steps[rank > WARM_UP]
    for one in np.setdiff1d(ints(steps, "replicate"), ints(warm, "replicate")):
        raise UserError(
            f"overhead: {arm}, replicate {one} has no step after {WARM_UP} of warm-up; train longer"
        )
    names = PHASES | {"seconds_step": STEP}
    means = warm.reindex(columns=["replicate", *names]).groupby("replicate").mean()
    means = means.rename(columns=names).dropna(subset=STEP)
    means = means.fillna(0.0)  # a phase that was not there took no time
    # Phases may overlap by a rounding of the clock: the rest is never negative.
    rest = means[STEP] - sum(means[name] for name in PHASES.values())
    means.insert(len(PHASES), OTHER, rest.clip(lower=0.0))
    return means
