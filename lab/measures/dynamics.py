"""Dynamics of a run: one row per replicate and epoch."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from lab.columns import Floats, Ints, floats, group_mean, ints, require
from lab.errors import UserError
from lab.measures.fate import LOST, of_fate
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
        visits: a trace's visits.
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
