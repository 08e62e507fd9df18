"""A problem's risk of being lost, from votes alone: one logistic regression per visit.

The truth serves to fit it, on replicates whose outcome is known, and never to score with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit

from lab.alarm.cohort import Cohort, at_stake, gather
from lab.alarm.features import TRIVIAL, features, votes_so_far
from lab.columns import Bools, Floats
from lab.errors import UserError
from lab.stats.words import counted

MODEL = "alarm"
MR_MODEL = "mr_fitted"
SCORES = (MODEL, MR_MODEL, *TRIVIAL)
"""The fitted alarm and the scores that it must beat: the same fit with MR at t as its only
feature, and the scores that need no fit."""
AT = (1, 3, 5, 8, 12)
"""Visits after which the alarm is judged."""
RIDGE = 1.0
"""Half of it times the squared norm of the weights is added to the summed log loss. It keeps the
weights finite where a feature separates the classes, and is negligible for 100 problems."""


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model; the risk is sigmoid(intercept + weight . (x - mean) / scale)."""

    mean_F: Floats
    scale_F: Floats
    weight_F: Floats
    """Change of the log odds per standard deviation of each feature."""
    intercept: float
    """NaN where the model was given one class only: then every risk is NaN."""

    def risk(self, features: Floats) -> Floats:
        """(rows,) probability of the positive class for (rows, F) features."""
        return expit(self.intercept + ((features - self.mean_F) / self.scale_F) @ self.weight_F)


def fit_logistic(features: Floats, positive: Bools) -> Logistic:
    """Fit by penalised maximum likelihood (L-BFGS from zero, so without randomness).

    Args:
        features: (rows, F) finite numbers; a feature that never varies gets weight 0.
        positive: (rows,) bool.
    """
    n_features = features.shape[1]
    if positive.all() or not positive.any():
        empty = np.zeros(n_features)
        return Logistic(empty, empty + 1, empty, np.nan)
    mean_F, sd_F = features.mean(axis=0), features.std(axis=0)
    # A constant column's spread is 0 up to rounding; dividing by that would make noise of it.
    scale_F = np.where(sd_F > 1e-12, sd_F, np.inf)
    x_NF, y_N = (features - mean_F) / scale_F, positive.astype(np.float64)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        weight_F, score_N = coefficients[1:], coefficients[0] + x_NF @ coefficients[1:]
        value = (np.logaddexp(0, score_N) - y_N * score_N).sum()
        error_N = expit(score_N) - y_N
        slope = np.concatenate([[error_N.sum()], error_N @ x_NF + RIDGE * weight_F])
        return float(value + RIDGE / 2 * (weight_F @ weight_F)), slope

    found = minimize(loss, np.zeros(1 + n_features), jac=True, method="L-BFGS-B")
    return Logistic(mean_F, scale_F, found.x[1:], float(found.x[0]))


@dataclass(frozen=True, slots=True)
class Alarm:
    """One fitted model per visit."""

    models: dict[int, Logistic]
    names: tuple[str, ...]
    """The features, see `lab.alarm.features.features`."""

    def risk(self, visits: pd.DataFrame, visit: int) -> pd.DataFrame:
        """Every problem's risk after a visit, from the votes up to it; no true answer is read.

        The risk is the chance of being lost if the label was right at first: the votes cannot
        tell whether it was.

        Args:
            visits: a trace's visits; its truth columns may be missing, later visits are not seen.
            visit: one of `models`.

        Returns:
            One row per replicate and problem that has made the visit: replicate, problem, risk.

        Raises:
            UserError: a column is missing, or no model was fitted for the visit.
        """
        if visit not in self.models:
            known = ", ".join(map(str, self.models))
            raise UserError(f"alarm: visit {visit}: the model was fitted for the visits {known}")
        votes = votes_so_far(visits).until(visit)
        risk = self.models[visit].risk(features(votes).to_numpy())
        return pd.DataFrame(
            {"replicate": votes.replicate_H, "problem": votes.problem_H, "risk": risk}
        )

    def weights(self) -> pd.DataFrame:
        """(visits, features) change of the log odds per standard deviation of a feature."""
        rows = [model.weight_F for model in self.models.values()]
        return pd.DataFrame(rows, pd.Index(self.models, name="visit"), list(self.names))


def fit_alarm(visits: pd.DataFrame, fates: pd.DataFrame, at: Sequence[int] = AT) -> Alarm:
    """Fit on every replicate of a finished run, for use on other runs.

    Args:
        visits: a trace's visits, visit 0 included.
        fates: from `lab.fates`.
        at: visits to fit a model for.

    Raises:
        UserError: a column is missing, no problem is at stake, or a visit lies outside the run.
    """
    cohort = gather(votes_so_far(visits), at_stake(visits, fates), at)
    return _fit(cohort, np.ones(len(cohort.lost_S), bool))


def deal(cohort: Cohort, folds: int, rng: np.random.Generator) -> Iterator[Bools]:
    """(S,) which problems each fold holds out; a replicate is held out as a whole, and once.

    Raises:
        UserError: fewer than two folds or replicates.
    """
    numbers = rng.permutation(np.unique(cohort.replicate_S))
    if min(folds, len(numbers)) < 2:
        raise UserError(
            f"alarm: {counted(len(numbers), 'replicate')} in {counted(folds, 'fold')}; at least "
            "two of each are needed, since it is fitted on some replicates and judged on others"
        )
    for held in np.array_split(numbers, min(folds, len(numbers))):
        yield np.isin(cohort.replicate_S, held)


def held_out_scores(cohort: Cohort, held_S: Bools) -> dict[str, Floats]:
    """(T, S) of every score of `SCORES`, fitted on the problems that are not held out."""
    models = {MODEL: cohort, MR_MODEL: cohort.only("mr_now")}
    fitted = {name: _risk(_fit(seen, ~held_S), seen) for name, seen in models.items()}
    return fitted | cohort.trivial_TS


def _fit(cohort: Cohort, chosen_S: Bools) -> Alarm:
    models = {}
    for t, seen_SF in zip(cohort.at, cohort.features_TSF, strict=True):
        rows = chosen_S & np.isfinite(seen_SF).all(axis=1)
        models[t] = fit_logistic(seen_SF[rows], cohort.lost_S[rows])
    return Alarm(models, cohort.names)


def _risk(alarm: Alarm, cohort: Cohort) -> Floats:
    """(T, S) risk of every problem at every visit."""
    seen = zip(cohort.at, cohort.features_TSF, strict=True)
    return np.stack([alarm.models[t].risk(seen_SF) for t, seen_SF in seen])
