"""A label-free alarm for the extinction window, judged against scores that need no model.

From the votes up to a visit, which problems will end up lost (Degraded or Marginal Degraded)? Only
problems that have something to lose count (`lab.alarm.cohort`), and a replicate is never judged by
a model that was fitted on it (`lab.alarm.risk`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.alarm.cohort import Cohort, at_stake, gather
from lab.alarm.features import votes_so_far
from lab.alarm.risk import AT, MODEL, SCORES, Alarm, deal, fit_alarm, held_out_scores
from lab.columns import Floats
from lab.stats.auroc import PairWins, pair_wins
from lab.stats.bootstrap import percentile_interval, resample_counts

__all__ = ["AT", "SCORES", "Alarm", "alarm_table", "fit_alarm", "judge"]

Pairs = Literal["same_run", "same_model"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Every score of the problems at stake, none by a model that has seen their outcome."""

    cohort: Cohort
    replicate_S: NDArray[np.int64]
    """Replicates numbered from 0, without gaps."""
    scores_TS: dict[str, Floats]
    """(T, S) of every score of `SCORES`; the higher, the likelier lost."""
    fold_R: NDArray[np.int64]
    """Fold that held the replicate out; risks of different folds do not compare."""

    @property
    def n_replicates(self) -> int:
        """R."""
        return len(self.fold_R)


def judge(
    visits: pd.DataFrame,
    fates: pd.DataFrame,
    rng: np.random.Generator,
    at: Sequence[int],
    folds: int = 4,
) -> Judged:
    """Score the problems at stake after some visits, each fold by a model of the other folds.

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`.
        rng: deals the folds.
        at: visits.
        folds: at most the number of replicates.

    Raises:
        UserError: as `alarm_table`.
    """
    cohort = gather(votes_so_far(visits), at_stake(visits, fates), at)
    numbers, replicate_S = np.unique(cohort.replicate_S, return_inverse=True)
    scores = {name: np.full((len(at), len(replicate_S)), np.nan) for name in SCORES}
    fold_R = np.zeros(len(numbers), np.int64)
    for fold, held_S in enumerate(deal(cohort, folds, rng)):
        fold_R[replicate_S[held_S]] = fold
        for name, score_TS in held_out_scores(cohort, held_S).items():
            scores[name][:, held_S] = score_TS[:, held_S]
    return Judged(cohort, replicate_S, scores, fold_R)


def alarm_table(
    visits: pd.DataFrame,
    fates: pd.DataFrame,
    rng: np.random.Generator,
    at: Sequence[int] = AT,
    *,
    pairs: Pairs = "same_run",
    unmoved: bool = False,
    folds: int = 4,
    n_resamples: int = 1000,
) -> pd.DataFrame:
    """AUROC of each score for lost against kept problems of the cohort.

    The replicates are dealt into folds at random; those of a fold are scored by a model fitted on
    the others. Intervals are 95 % percentiles of a bootstrap that draws whole replicates and
    leaves the fitted models as they are; with few replicates they are on the narrow side. Every
    score is judged on the same draws, so that differences are paired.

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`.
        rng: deals the folds and draws the bootstrap.
        at: visits after which the scores are judged.
        pairs: which lost and kept problems are held against each other: those of one replicate,
            or also those of different replicates that one fitted model scored. Across models the
            risks do not compare, since each has the intercept of the replicates it was fitted on.
        unmoved: judge only problems whose first label still holds at the visit, for among those
            at stake a label that moved has already left the correct answer.
        folds: at most the number of replicates.
        n_resamples: bootstrap draws.

    Returns:
        One row per visit and score of `SCORES`: visit, score, auroc, low, high; `gain`,
        `gain_low`, `gain_high`, the alarm's AUROC minus this score's; n_lost, n_kept. NaN where a
        class is empty.

    Raises:
        UserError: a column is missing, no problem is at stake, a visit lies outside the run, or
            there are fewer than two replicates.
    """
    found = judge(visits, fates, rng, at, folds)
    draws_BR = resample_counts(found.n_replicates, n_resamples, rng)
    rows = []
    for place, t in enumerate(at):
        there = found.cohort.trivial_TS["moved"][place] <= (0 if unmoved else 1)
        lost, own = found.cohort.lost_S[there], found.replicate_S[there]
        counted = {
            n: pair_wins(s[place, there], lost, own, found.n_replicates)
            for n, s in found.scores_TS.items()
        }
        wins = {name: won.among(found.fold_R) for name, won in counted.items()}
        counts = {"n_lost": int(lost.sum()), "n_kept": int((~lost).sum())}
        rows += [{"visit": t, **row, **counts} for row in _judged(wins, draws_BR, pairs)]
    return pd.DataFrame(rows)


def _judged(
    wins: dict[str, PairWins], draws_BR: NDArray[np.int64], pairs: Pairs
) -> Iterator[dict[str, object]]:
    """AUROC of every score and the alarm's lead over it, each with its interval."""

    def area(won: PairWins, weights: NDArray[np.int64]) -> Floats:
        return won.auroc_same_run(weights) if pairs == "same_run" else won.auroc(weights)

    ones = np.ones(draws_BR.shape[1], np.int64)
    value = {name: float(area(won, ones)) for name, won in wins.items()}
    drawn_B = {name: area(won, draws_BR) for name, won in wins.items()}
    for name in wins:
        low, high = percentile_interval(drawn_B[name])
        gain_low, gain_high = percentile_interval(drawn_B[MODEL] - drawn_B[name])
        yield {
            "score": name,
            "auroc": value[name],
            "low": low,
            "high": high,
            "gain": value[MODEL] - value[name],
            "gain_low": gain_low,
            "gain_high": gain_high,
        }
