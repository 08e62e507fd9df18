"""Logistic regression: standardised features, one weight each, a ridge against separation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from lab.columns import Bools, Floats

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
