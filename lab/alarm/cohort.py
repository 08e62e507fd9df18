"""The problems that an alarm is evaluated on, and their features.

Only a problem whose correct answer was the label at the first visits has something to lose: it is
*at stake*. Where the label was wrong from the start, nothing that the alarm warns of can happen.
The true answers choose these problems and grade the alarm; no score is computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lab.alarm.features import KEYS, TRIVIAL, VotesSoFar, features
from lab.columns import Bools, Floats, Ints, flags, floats, ints, require
from lab.errors import UserError
from lab.measures.fate import FATES, LOST, of_fate

FIRST_VISITS = (0, 1)
"""At stake: the label was correct at each of these, before training and at the first visit."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The problems at stake, what became of them, and what the votes up to each visit tell."""

    replicate_S: Ints
    problem_S: Ints
    lost_S: Bools
    """The fate is Degraded or Marginal Degraded; every other fate is kept."""
    last_win_S: Ints
    """Last visit at which the correct answer was the label."""
    at: tuple[int, ...]
    features_TSF: Floats
    """Features at each visit of `at`; NaN where a problem did not make the visit."""
    trivial_TS: dict[str, Floats]
    """Values of each score of `lab.alarm.features.TRIVIAL` at each visit."""
    names: tuple[str, ...]
    """The F features."""

    def only(self, *names: str) -> Cohort:
        """Keep only the named features."""
        places = [self.names.index(name) for name in names]
        return replace(self, features_TSF=self.features_TSF[..., places], names=names)


def at_stake(visits: pd.DataFrame, fates: pd.DataFrame) -> pd.DataFrame:
    """The problems that have something to lose.

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`; problems that are not in it are left out.

    Returns:
        One row per replicate and problem whose label was correct at visits 0 and 1, in that order:
        `replicate`, `problem`, `lost` (Degraded or Marginal Degraded at the end), `last_win` (last
        visit at which the correct answer was the label).

    Raises:
        UserError: a column is missing, or no problem is at stake.
    """
    require(visits, (*KEYS, "label_accuracy", "label_correct"), "alarm")
    require(fates, ("replicate", "problem", "fate"), "alarm")
    known = np.isfinite(floats(visits, "label_accuracy")) & of_fate(visits, fates, FATES)
    won = np.flatnonzero(known & flags(visits, "label_correct"))
    replicate, problem, visit = (ints(visits, name)[won] for name in KEYS)
    width = 1 + problem.max(initial=0)
    ids, own = np.unique(replicate * width + problem, return_inverse=True)
    first = np.bincount(own[np.isin(visit, FIRST_VISITS)], minlength=len(ids))
    chosen = first == len(FIRST_VISITS)
    if not chosen.any():
        raise UserError(
            "alarm: no problem is at stake: none had the correct label at visits 0 and 1"
        )
    last = np.zeros(len(ids), np.int64)
    np.maximum.at(last, own, visit)
    lost = np.zeros(len(ids), bool)
    lost[own] = of_fate(visits, fates, LOST)[won]
    columns = {"replicate": ids // width, "problem": ids % width, "lost": lost, "last_win": last}
    return pd.DataFrame({name: values[chosen] for name, values in columns.items()})


def gather(votes: VotesSoFar, cohort: pd.DataFrame, at: Sequence[int]) -> Cohort:
    """Features of the problems of the cohort at some visits.

    Args:
        votes: of the whole run, all its problems.
        cohort: from `at_stake`.
        at: visits; each sees nothing later.

    Raises:
        UserError: a visit lies outside the run.
    """
    if outside := [t for t in at if not 1 <= t <= votes.last]:
        raise UserError(f"alarm: visit {outside[0]}: the run has visits 1 to {votes.last}")
    seen_TSF, trivial_TS = [], {name: np.full((len(at), len(cohort)), np.nan) for name in TRIVIAL}
    names: tuple[str, ...] = ()
    for place, t in enumerate(at):
        past = votes.until(t)
        rows, own = _common(past, cohort)
        table = features(past)
        names = tuple(table.columns)
        seen = np.full((len(cohort), len(names)), np.nan)
        seen[own] = table.to_numpy()[rows]
        seen_TSF.append(seen)
        for name, score in TRIVIAL.items():
            trivial_TS[name][place, own] = score(past)[rows]
    return Cohort(
        replicate_S=ints(cohort, "replicate"),
        problem_S=ints(cohort, "problem"),
        lost_S=flags(cohort, "lost"),
        last_win_S=ints(cohort, "last_win"),
        at=tuple(at),
        features_TSF=np.stack(seen_TSF),
        trivial_TS=trivial_TS,
        names=names,
    )


def _common(votes: VotesSoFar, cohort: pd.DataFrame) -> tuple[Ints, Ints]:
    """Rows of `votes` and of `cohort` that are the same problem."""
    replicate, problem = ints(cohort, "replicate"), ints(cohort, "problem")
    width = 1 + max(problem.max(initial=0), votes.problem_H.max(initial=0))
    voted = votes.replicate_H * width + votes.problem_H
    _, rows, own = np.intersect1d(voted, replicate * width + problem, return_indices=True)
    return rows, own
