"""Course of a run: means per epoch, extinction window (docs/method.md, section 11), step times."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE
from lab.base.columns import (
    ROUNDING,
    Bools,
    Floats,
    Ints,
    finite_mean,
    flags,
    floats,
    group_mean,
    ints,
    require,
)
from lab.base.errors import UserError
from lab.measures.fate import LOST, histories, of_fate
from lab.measures.problems import PAPER_FATES
from lab.trace.schema import ROUTES

ROUTE_COLUMNS = {code: f"route_{name.lower().replace(' ', '_')}" for code, name in ROUTES.items()}
"""Route code to the column of its share."""

SCORES = ("pass_at_1", "maj_accuracy")

# What is undefined before training: no visit has been made, so no guard has spoken.
_GUARD_COLUMNS = (
    "flip_rate",
    "mean_problem_flip_rate",
    "weight",
    "weighted_share",
    "beta",
    "skipped",
    "minority_share",
    *ROUTE_COLUMNS.values(),
)
_NEEDED = (
    "replicate",
    "epoch",
    "visit",
    "problem",
    "flipped",
    "flip_rate",
    "match_rate",
    "route",
    "weight",
    "beta",
    "n_minority",
    "skipped",
    "label_accuracy",
    "label_correct",
)


def dynamics(
    visits: pd.DataFrame,
    evals: pd.DataFrame | None = None,
    fates: pd.DataFrame | None = None,
    lost: Collection[str] = LOST,
) -> pd.DataFrame:
    """Means over the problems that were visited in an epoch, all as shares from 0 to 1.

    Args:
        evals: a trace's evaluations; without them `pass_at_1` and `maj_accuracy` are NaN.
        fates: from `lab.fates`; without them `correct_vote_rate_lost` is NaN.
        lost: fates that count as lost. By default the problems that training made worse; the
            paper's figure takes `lab.measures.fate.PAPER_LOST` (Degraded and Always Wrong).

    Returns:
        One row per replicate and epoch; epoch 0 is before training, where the guard's columns are
        NaN. `progress` is the epoch by the replicate's last epoch. `flip_rate` is the run-level
        flip rate: the share of problems whose label changed since their last visit;
        `mean_problem_flip_rate` is the mean of the problems' windowed rates, which is another
        number. `correct_vote_rate` is the share of visits whose label is the true answer.
        `weighted_share`, `minority_share` and `skipped` are shares of visits with a weight below
        1, with a minority candidate, and left out; `route_*` are shares of visits. `pass_at_1`
        and `maj_accuracy` are those of the last evaluation in the epoch.

    Raises:
        UserError: a column is missing, or there are no visits.
    """
    require(visits, _NEEDED, "dynamics")
    if visits.empty:
        raise UserError("dynamics: there are no visits; give a run that has trained")
    columns = _per_visit(visits)
    is_lost = np.zeros(len(visits), bool) if fates is None else of_fate(visits, fates, lost)
    columns["correct_vote_rate_lost"] = np.where(is_lost, columns["correct_vote_rate"], np.nan)
    keys, width = _keys(visits, evals)
    row = np.searchsorted(keys, _key(visits, width))
    means = {name: group_mean(values, row, len(keys)) for name, values in columns.items()}
    replicate, epoch = keys // width, keys % width
    for name in _GUARD_COLUMNS:
        means[name][epoch == 0] = np.nan
    scores = {name: _last_scores(evals, name, keys, width) for name in SCORES}
    progress = epoch / np.maximum(_last_epoch(replicate, epoch), 1)
    own = {"replicate": replicate, "epoch": epoch, "progress": progress}
    return pd.DataFrame({**own, **means, **scores})


def _per_visit(visits: pd.DataFrame) -> dict[str, Floats]:
    """(rows,) per quantity that an epoch's row is the mean of; NaN where it is not known."""
    accuracy, correct = floats(visits, "label_accuracy"), floats(visits, "label_correct")
    route = ints(visits, "route")
    columns = {
        "flip_rate": floats(visits, "flipped"),
        "mean_problem_flip_rate": floats(visits, "flip_rate"),
        "match_rate": floats(visits, "match_rate"),
        "label_accuracy": accuracy,
        "correct_vote_rate": np.where(np.isnan(accuracy), np.nan, correct),
        "weight": floats(visits, "weight"),
        "weighted_share": (floats(visits, "weight") < 1).astype(np.float64),
        "beta": floats(visits, "beta"),
        "skipped": floats(visits, "skipped"),
        "minority_share": (ints(visits, "n_minority") > 0).astype(np.float64),
    }
    for code, name in ROUTE_COLUMNS.items():
        columns[name] = (route == code).astype(np.float64)
    return columns


def _key(table: pd.DataFrame, width: int) -> Ints:
    """One number per replicate and epoch."""
    return ints(table, "replicate") * width + ints(table, "epoch")


def _keys(visits: pd.DataFrame, evals: pd.DataFrame | None) -> tuple[Ints, int]:
    """Replicates and epochs that have a visit or an evaluation, and the keys' width."""
    tables = [visits]
    if evals is not None:
        require(evals, ("replicate", "step", "epoch", *SCORES), "dynamics")
        tables.append(evals)
    width = 1 + max(ints(table, "epoch").max(initial=0) for table in tables)
    return np.unique(np.concatenate([_key(table, width) for table in tables])), width


def _last_scores(evals: pd.DataFrame | None, name: str, keys: Ints, width: int) -> Floats:
    """(keys,) the last measured value of each epoch."""
    scores = np.full(len(keys), np.nan)
    if evals is not None:
        values, key = floats(evals, name), _key(evals, width)
        order = np.argsort(ints(evals, "step"), kind="stable")
        order = order[np.isfinite(values[order])]
        # Of several values for one place the last one stays.
        scores[np.searchsorted(keys, key[order])] = values[order]
    return scores


def _last_epoch(replicate: Ints, epoch: Ints) -> Ints:
    """(rows,) the last epoch of each row's replicate; keys are sorted, so it stands last."""
    last = np.searchsorted(replicate, replicate, side="right") - 1
    return epoch[last]


DROP = 0.02
"""Fall of pass@1 below its running maximum that counts as a drop."""
WINDOW = ("fr_peak", "peak", "collapse", "drop", "lead")
"""Columns of `run_windows`."""


def run_windows(dynamics: pd.DataFrame) -> pd.DataFrame:
    """Peak and collapse of the flip rate, and the drop of pass@1, per run.

    Args:
        dynamics: from `lab.measures.dynamics.dynamics`, with evaluations.

    Returns:
        Indexed by replicate: `fr_peak` (share) and `peak` (its first epoch), `collapse` (first
        epoch after the peak from which FR stays below half of the peak), `drop` (first epoch from
        which pass@1 stays 2 points below its running maximum), `lead` = drop - collapse, in
        epochs. NaN where it did not happen; without any flip there is no peak and no collapse.

    Raises:
        UserError: a column is missing.
    """
    needed = ("replicate", "epoch", "flip_rate", "pass_at_1")
    require(dynamics, needed, "extinction window")
    ordered = dynamics.take(np.argsort(ints(dynamics, "epoch"), kind="stable"))
    own = ints(ordered, "replicate")
    replicates = np.unique(own)
    rows = [_window(ordered.take(np.flatnonzero(own == one))) for one in replicates]
    return pd.DataFrame(rows, pd.Index(replicates, name="replicate"), list(WINDOW))


def competitive_windows(visits: pd.DataFrame) -> pd.DataFrame:
    """Last visit at which the correct answer is competitive, per problem.

    Args:
        visits: a trace's visits; visit 0 and problems without a known true answer are left out.

    Returns:
        One row per replicate and problem: `last_competitive` (visit at which the correct answer
        last held a quarter of the votes, 0 if never) and `window` (its share of the visits).

    Raises:
        UserError: a column is missing.
    """
    needed = ("replicate", "problem", "visit", "label_accuracy", "correct_competitive")
    require(visits, needed, "extinction window")
    found = histories(visits, np.isfinite(floats(visits, "label_accuracy")))
    competitive = flags(visits, "correct_competitive")[found.order]
    within = np.arange(len(found.order)) - np.repeat(found.start, found.length)
    place = np.where(competitive, within + 1, 0)
    last = np.maximum.reduceat(place, found.start) if len(found.start) else place
    rows = found.order[found.start]
    return pd.DataFrame(
        {
            "replicate": visits["replicate"].to_numpy()[rows],
            "problem": visits["problem"].to_numpy()[rows],
            "last_competitive": last,
            "window": last / found.length,
        }
    )


def _window(run: pd.DataFrame) -> dict[str, float]:
    epochs, rates, scores = ints(run, "epoch"), floats(run, "flip_rate"), floats(run, "pass_at_1")
    measured = np.isfinite(scores)
    drop = _drop(scores[measured], epochs[measured])
    known = np.isfinite(rates)
    rates, epochs = rates[known], epochs[known]
    window = dict.fromkeys(WINDOW, np.nan) | {"fr_peak": rates.max(initial=0.0), "drop": drop}
    if window["fr_peak"] > 0:
        peak = int(rates.argmax())
        collapse = _first_for_good((rates < rates[peak] / 2)[peak:], epochs[peak:])
        window |= {"peak": float(epochs[peak]), "collapse": collapse, "lead": drop - collapse}
    return window


def _drop(scores: Floats, epochs: Ints) -> float:
    low = scores <= np.maximum.accumulate(scores) - DROP + ROUNDING
    return _first_for_good(low, epochs)


def _first_for_good(holds: Bools, epochs: Ints) -> float:
    """First epoch from which a condition holds to the end, NaN if there is none."""
    broken = np.flatnonzero(~holds)
    first = int(broken[-1]) + 1 if len(broken) else 0
    return float(epochs[first]) if first < len(holds) else np.nan


def window_share(dynamics: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Share of the replicates between the peak of FR and its collapse.

    Args:
        dynamics: from `lab.measures.dynamics.dynamics`, of one arm.
        windows: from `lab.measures.dynamics.run_windows`, of the same arm. A window that never
        collapsed is
            open to the end; a run without any flip never has one.

    Returns:
        One row per epoch from 1 on: epoch, progress, share (0 to 1; of the replicates whose window
        is open, from the peak's epoch up to before the collapse's), n (replicates).

    Raises:
        UserError: a column is missing, or a replicate of the dynamics has no window.
    """
    require(dynamics, ("replicate", "epoch", "progress"), "extinction window")
    require(windows, ("peak", "collapse"), "extinction window")
    lacking = sorted(set(dynamics["replicate"]) - set(windows.index))
    if lacking:
        raise UserError(
            f"extinction window: no window of replicate {lacking[0]}; give both tables of one run"
        )
    rows = dynamics.take(np.flatnonzero(dynamics["epoch"].to_numpy() > 0))
    own = windows.loc[rows["replicate"]]
    peak, collapse = floats(own, "peak"), floats(own, "collapse")
    epoch = floats(rows, "epoch")
    # Any comparison with NaN is false: no peak is no window, no collapse is an open end.
    is_open = (epoch >= peak) & ~(epoch >= collapse)
    grouped = rows.assign(share=is_open.astype(np.float64)).groupby("epoch", as_index=False)
    return grouped.agg(progress=("progress", "mean"), share=("share", "mean"), n=("share", "count"))


def window_width(
    visits: pd.DataFrame, fates: pd.DataFrame, wanted: Collection[str] = PAPER_FATES
) -> pd.DataFrame:
    """Share of its visits up to which the correct answer of a problem stayed competitive.

    Args:
        wanted: names out of `lab.measures.fate.FATES`.

    Returns:
        One row per replicate that has such problems: replicate, window (mean over them, 0 to 1),
        n_problems.

    Raises:
        UserError: a column is missing.
    """
    windows = competitive_windows(visits)
    own = windows.take(np.flatnonzero(of_fate(windows, fates, wanted)))
    grouped = own.groupby("replicate", as_index=False)
    return grouped.agg(window=("window", "mean"), n_problems=("window", "count"))


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


def step_seconds(steps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean seconds per step and phase of every arm, and their share of the baseline's step.

    Args:
        steps: arm to a trace's steps, all from one machine; a replicate's number means the same
            seed in each.

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
    parts = {arm: _seconds(table, arm) for arm, table in steps.items()}
    measured = {arm: part for arm, part in parts.items() if part is not None}
    if BASELINE not in measured:
        raise UserError(f"overhead: {BASELINE} has no seconds_step; only real runs are timed")
    base = measured[BASELINE][STEP]
    found = []
    for arm, table in measured.items():
        long = table.rename_axis("replicate").reset_index()
        long = long.melt("replicate", var_name="phase", value_name="seconds").assign(arm=arm)
        whole = base.reindex(long["replicate"]).to_numpy(np.float64)
        found.append(long.assign(relative=100 * floats(long, "seconds") / whole))
    columns = ["arm", "replicate", "phase", "seconds", "relative"]
    return pd.concat(found, ignore_index=True).reindex(columns=columns)


def _seconds(steps: pd.DataFrame, arm: str) -> pd.DataFrame | None:
    """Mean seconds, replicates down and phases across; None where no step was timed."""
    require(steps, ("replicate", "step"), "overhead")
    if "seconds_step" not in steps or not np.isfinite(floats(steps, "seconds_step")).any():
        return None
    replicate = ints(steps, "replicate")
    rank = steps.groupby("replicate")["step"].rank(method="first").to_numpy()
    rows = {}
    for one in np.unique(replicate):
        own = steps.take(np.flatnonzero((replicate == one) & (rank > WARM_UP)))
        if own.empty:
            raise UserError(
                f"overhead: {arm}, replicate {one} has no step after {WARM_UP} of warm-up; "
                "train longer"
            )
        rows[one] = _mean_phases(own)
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean_phases(own: pd.DataFrame) -> dict[str, float]:
    means = {title: _mean(own, name) for name, title in PHASES.items()}
    whole = _mean(own, "seconds_step")
    # Phases may overlap by a rounding of the clock: the rest is never negative.
    return means | {OTHER: max(whole - sum(means.values()), 0.0), STEP: whole}


def _mean(own: pd.DataFrame, name: str) -> float:
    """Mean of the measured steps, 0 where the phase was not there at all."""
    return float(np.nan_to_num(finite_mean(own, name))) if name in own else 0.0
