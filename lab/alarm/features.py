"""Features of each problem from the votes up to a visit, without any true answer.

Nothing here reads a column that needs the truth, and nothing at visit t reads a later visit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.columns import Floats, Ints, ints, require
from lab.errors import UserError

VOTE_COLUMNS = (
    "label",
    "flipped",
    "tie",
    "match_rate",
    "flip_rate",
    "n_unparseable",
    "n_votes",
)
"""Columns that the alarm may see, besides the keys."""
KEYS = ("replicate", "problem", "visit")
SLOPE_VISITS = 5
"""Match rates that the slope is fitted to, as many as the paper's window W."""


@dataclass(frozen=True, slots=True)
class VotesSoFar:
    """All problems' votes, visit by visit, up to some visit t."""

    replicate_H: Ints
    problem_H: Ints
    columns: dict[str, NDArray[np.float64]]
    """(H, 1 + t) per column of `VOTE_COLUMNS`, visit 0 first; NaN where there was no visit."""

    @property
    def last(self) -> int:
        """The last visit, t."""
        return self.columns["label"].shape[1] - 1

    def until(self, visit: int) -> VotesSoFar:
        """Cut the votes after a visit, for problems that made it and every visit before it."""
        cut = {name: values[:, : visit + 1] for name, values in self.columns.items()}
        there = ~np.isnan(cut["label"]).any(axis=1)
        kept = {name: values[there] for name, values in cut.items()}
        return VotesSoFar(self.replicate_H[there], self.problem_H[there], kept)


def votes_so_far(visits: pd.DataFrame) -> VotesSoFar:
    """A trace's visits as one row per replicate and problem, in that order.

    Raises:
        UserError: a column is missing, there are no visits, or a visit is there twice.
    """
    require(visits, (*KEYS, *VOTE_COLUMNS), "alarm")
    if visits.empty:
        raise UserError("alarm: there are no visits; give a run that has trained")
    replicate, problem, visit = (ints(visits, name) for name in KEYS)
    width, n_visits = 1 + problem.max(), 1 + visit.max()
    ids, row = np.unique(replicate * width + problem, return_inverse=True)
    cell = row * n_visits + visit
    if len(np.unique(cell)) < len(cell):
        raise UserError("alarm: a visit is there twice; keep one run per folder")
    columns = {}
    for name in VOTE_COLUMNS:
        values = np.full(len(ids) * n_visits, np.nan)
        values[cell] = visits[name].to_numpy(np.float64)
        columns[name] = values.reshape(len(ids), n_visits)
    return VotesSoFar(ids // width, ids % width, columns)


def features(votes: VotesSoFar) -> pd.DataFrame:
    """Features of the alarm's model at the last visit t of `votes`, one row per problem.

    `first label` is the first that the problem had. Columns: `mr_now`, `mr_mean` (visits 0 to t),
    `mr_change` (now - visit 0), `mr_slope` (least squares over the last five visits, per visit),
    `held` (votes that the first label got: MR now if it is still the label, else 0), `moved` (it
    no longer is), `flips`, `since_flip` (visits since the last flip by t; 1 if none), `fr`, `ties`
    (share of visits), `unparseable` (share of votes).

    The whole run's flip rate and match rate are not among them: they cannot rank the problems of
    a run, and a handful of runs to fit on is too few to learn how many false alarms they cause.
    """
    c, t = votes.columns, votes.last
    rate, flipped = c["match_rate"], c["flipped"]
    moved = _moved(c["label"])
    columns = {
        "mr_now": rate[:, t],
        "mr_mean": rate.mean(axis=1),
        "mr_change": rate[:, t] - rate[:, 0],
        "mr_slope": _slope(rate[:, max(0, t + 1 - SLOPE_VISITS) :]),
        "held": rate[:, t] * (1 - moved),
        "moved": moved,
        "flips": flipped.sum(axis=1),
        "since_flip": _since_flip(flipped) / max(t, 1),
        "fr": c["flip_rate"][:, t],
        "ties": c["tie"].mean(axis=1),
        "unparseable": c["n_unparseable"].sum(axis=1) / np.maximum(c["n_votes"].sum(axis=1), 1),
    }
    return pd.DataFrame(columns)


TRIVIAL: dict[str, Callable[[VotesSoFar], Floats]] = {
    "mr": lambda votes: 1 - votes.columns["match_rate"][:, -1],
    "mr_mean": lambda votes: 1 - votes.columns["match_rate"].mean(axis=1),
    "mr_first": lambda votes: 1 - votes.columns["match_rate"][:, 0],
    "fr": lambda votes: votes.columns["flip_rate"][:, -1],
    "flips": lambda votes: votes.columns["flipped"].sum(axis=1),
    "moved": lambda votes: _moved(votes.columns["label"]),
}
"""Scores that need no fit, the higher the likelier lost: a low match rate at t, on average up to t
or at visit 0, the problem's flip rate, its flips so far, and 1 if the label is not the first."""


def _moved(label: Floats) -> Floats:
    """1 where the label is not the first one that the problem had, -1 being none."""
    first = np.argmax(label >= 0, axis=1)
    return (label[:, -1] != label[np.arange(len(label)), first]).astype(np.float64)


def _slope(rate: Floats) -> Floats:
    """Least-squares slope of each row, per column; 0 for a single column."""
    place = np.arange(rate.shape[1]) - (rate.shape[1] - 1) / 2
    return rate @ place / (place @ place) if len(place) > 1 else np.zeros(len(rate))


def _since_flip(flipped: Floats) -> Floats:
    """Visits since the last flip, all of them where there was none; visit 0 is no flip."""
    t = flipped.shape[1] - 1
    last = np.where(flipped > 0, np.arange(t + 1), 0).max(axis=1)
    return (t - last).astype(np.float64)
