"""Lead time of the alarm before a problem is lost, and its false alarms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.alarm.cohort import Cohort, at_stake, gather
from lab.alarm.features import votes_so_far
from lab.alarm.risk import SCORES, deal, held_out_scores
from lab.columns import ROUNDING, Bools, Floats, flags, floats, ints
from lab.errors import UserError
from lab.stats.bootstrap import percentile_interval, resample_counts

LEAD_COLUMNS = ("score", "replicate", "problem", "lost", "last_win", "alarm", "lead")
FALSE_ALARMS = 0.1
"""Share of the kept problems that may ever be alarmed at, in the replicates fitted on."""


def lead_times(
    visits: pd.DataFrame,
    fates: pd.DataFrame,
    rng: np.random.Generator,
    *,
    false_alarms: float = FALSE_ALARMS,
    folds: int = 4,
    scores: Sequence[str] = SCORES,
) -> pd.DataFrame:
    """Visits between the first alarm of a problem and its last win.

    A score sounds at the first visit at which it exceeds its threshold, one threshold for all
    visits. The threshold is the least at which at most a share `false_alarms` of the kept problems
    at stake, in the replicates fitted on, are *ever* alarmed at; the share among the replicates
    judged is for the reader to compare (`lead_summary`).

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`.
        rng: deals the folds, as in `alarm_table`.
        false_alarms: in [0, 1).
        folds: at most the number of replicates.
        scores: out of `SCORES`.

    Returns:
        One row per score, replicate and problem at stake: score, replicate, problem, lost,
        last_win (last visit at which the correct answer was the label), alarm (first visit with an
        alarm; NaN if none), lead = last_win - alarm in visits. A lead of 1 or more leaves a visit
        that the correct answer still wins; 0 comes with its last win and less comes after it.

    Raises:
        UserError: as `alarm_table`, or the replicates fitted on lack lost or kept problems.
        ValueError: `false_alarms` or a score is not one.
    """
    if not 0 <= false_alarms < 1:
        raise ValueError(f"false_alarms = {false_alarms}: must be in [0, 1)")
    if unknown := sorted(set(scores) - set(SCORES)):
        raise ValueError(f"{', '.join(unknown)}: not among {', '.join(SCORES)}")
    chosen = at_stake(visits, fates)
    votes = votes_so_far(visits)
    cohort = gather(votes, chosen, range(1, votes.last + 1))
    alarm_S = {name: np.full(len(chosen), np.nan) for name in scores}
    for held_S in deal(cohort, folds, rng):
        _check_classes(cohort, ~held_S)
        found = held_out_scores(cohort, held_S)
        for name in scores:
            bound = _threshold(found[name][:, ~held_S & ~cohort.lost_S], false_alarms)
            alarm_S[name][held_S] = _first_above(found[name][:, held_S], bound, cohort.at)
    tables = [chosen.assign(score=name, alarm=alarm_S[name]) for name in scores]
    whole = pd.concat(tables, ignore_index=True)
    whole["lead"] = whole["last_win"] - whole["alarm"]
    return whole.reindex(columns=list(LEAD_COLUMNS))


def lead_summary(
    leads: pd.DataFrame, rng: np.random.Generator, n_resamples: int = 1000
) -> pd.DataFrame:
    """Summarise the alarms of `lead_times`.

    Args:
        leads: from `lead_times`.
        rng: draws the bootstrap, whole replicates as in `alarm_table`.
        n_resamples: bootstrap draws.

    Returns:
        One row per score, everything pooled over the replicates: `false_alarms` (kept problems
        that were alarmed at, as a share, in the replicates judged), `caught` (lost problems that
        were), `in_time` (lost problems with a lead of 1 or more) with its 95 % interval
        `in_time_low`, `in_time_high`; `lead_q25`, `lead_median`, `lead_q75` (visits, of the lost
        problems that were caught); n_lost, n_kept.
    """
    numbers, run = np.unique(ints(leads, "replicate"), return_inverse=True)
    draws_BR = resample_counts(len(numbers), n_resamples, rng)
    groups = leads.assign(run=run).groupby("score", sort=False)
    return pd.DataFrame([{"score": name, **_summary(own, draws_BR)} for name, own in groups])


def _check_classes(cohort: Cohort, fitted_S: Bools) -> None:
    for name, there in (("lost", cohort.lost_S), ("kept", ~cohort.lost_S)):
        if not (there & fitted_S).any():
            raise UserError(
                f"lead times: the replicates fitted on have no {name} problem at stake; "
                "give more replicates"
            )


def _threshold(score_TK: Floats, false_alarms: float) -> float:
    """The least value that at most a share of the kept problems ever exceed."""
    peak_K = np.sort(np.nanmax(score_TK, axis=0))
    # The last bit of the product must not cost an alarm that the rate allows.
    allowed = int(false_alarms * len(peak_K) + ROUNDING)
    return float(peak_K[len(peak_K) - 1 - allowed])


def _first_above(score_TS: Floats, bound: float, at: Sequence[int]) -> Floats:
    """(S,) first visit with a score above the threshold, NaN if there is none."""
    above = score_TS > bound
    return np.where(above.any(axis=0), np.asarray(at, np.float64)[above.argmax(axis=0)], np.nan)


def _summary(own: pd.DataFrame, draws_BR: NDArray[np.int64]) -> dict[str, float]:
    lost, alarmed = flags(own, "lost"), np.isfinite(floats(own, "alarm"))
    lead, run = floats(own, "lead")[lost], ints(own, "run")[lost]
    n_runs = draws_BR.shape[1]
    n_B = draws_BR @ np.bincount(run, minlength=n_runs)
    in_time_B = draws_BR @ np.bincount(run[lead >= 1], minlength=n_runs) / np.maximum(n_B, 1)
    low, high = percentile_interval(np.where(n_B > 0, in_time_B, np.nan))
    caught = lead[np.isfinite(lead)]
    quartiles = np.quantile(caught, [0.25, 0.5, 0.75]) if len(caught) else np.full(3, np.nan)
    return {
        "false_alarms": _share(alarmed[~lost]),
        "caught": _share(alarmed[lost]),
        "in_time": _share(lead >= 1),
        "in_time_low": low,
        "in_time_high": high,
        "lead_q25": float(quartiles[0]),
        "lead_median": float(quartiles[1]),
        "lead_q75": float(quartiles[2]),
        "n_lost": int(lost.sum()),
        "n_kept": int((~lost).sum()),
    }


def _share(holds: Bools) -> float:
    return float(holds.mean()) if len(holds) else np.nan
