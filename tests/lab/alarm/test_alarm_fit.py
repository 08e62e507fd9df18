"""The logistic model."""

import numpy as np
import pytest
from scipy.special import expit

from lab.alarm.risk import RIDGE, fit_alarm, fit_logistic


def test_logistic_fit_is_the_penalised_optimum():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(5, 2, 300), rng.normal(size=300), np.full(300, 0.1)])
    y = rng.random(300) < expit(x[:, 0] - 5)
    model = fit_logistic(x, y)
    error = model.risk(x) - y
    scaled = (x - model.mean_F) / model.scale_F
    assert error.sum() == pytest.approx(0, abs=1e-2)
    assert error @ scaled + RIDGE * model.weight_F == pytest.approx(np.zeros(3), abs=1e-2)
    assert model.weight_F[0] > 1 and model.weight_F[2] == 0


def test_logistic_of_separable_and_of_one_class():
    x = np.arange(6.0)[:, None]
    model = fit_logistic(x, x[:, 0] > 2)
    assert np.isfinite(model.weight_F).all()
    assert (np.diff(model.risk(x)) > 0).all()
    assert np.isnan(fit_logistic(x, np.ones(6, bool)).risk(x)).all()


def test_weights_are_there_to_read(world):
    weights = fit_alarm(*world, (1, 9)).weights()
    assert weights.index.tolist() == [1, 9]
    assert weights.loc[9, "moved"] > 0 and weights.loc[9, "held"] < 0
    assert weights.loc[9, "unparseable"] == 0
