"""The exponential and the softmax of the compiled policies."""

import numpy as np
import pytest
from numba import njit
from scipy.special import softmax

from sim.world.sampling import exp_below_zero, softmax_rows


@njit
def exps(x_N):
    out_N = np.empty_like(x_N)
    for n in range(x_N.shape[0]):
        out_N[n] = exp_below_zero(x_N[n])
    return out_N


def test_exponential_is_right_to_one_unit_in_the_last_place():
    rng = np.random.default_rng(0)
    x_N = -np.concatenate([rng.uniform(0, 1, 20000), rng.exponential(20, 20000), [0.0, 1e-300]])
    x_N = x_N[x_N > -700]
    exact_N = np.exp(x_N.astype(np.longdouble))
    error_N = np.abs(exps(x_N) - exact_N) / np.spacing(exact_N.astype(float))
    assert error_N.max() < 1
    assert exps(np.array([0.0]))[0] == 1
    edges_N = -np.log(2) * (np.arange(1000) + 0.5)
    assert exps(edges_N) == pytest.approx(np.exp(edges_N), rel=1e-15)


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 10), (2, 64, 7), (4, 1, 33)])
def test_rows_are_softmaxes(shape):
    z_RPA = np.random.default_rng(1).normal(0, 30, shape)
    found_RPA = z_RPA.copy()
    assert softmax_rows(found_RPA) == -1
    assert found_RPA == pytest.approx(softmax(z_RPA, axis=-1), rel=1e-13)
    assert found_RPA.sum(axis=-1) == pytest.approx(1.0, abs=1e-15 * shape[-1])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(wrong):
    z_RPA = np.zeros((2, 3, 4))
    z_RPA[1, 1, 2] = z_RPA[1, 2, 0] = wrong
    assert softmax_rows(z_RPA) == 4
    assert (z_RPA[0] == 0.25).all()


def test_a_row_does_not_depend_on_its_company():
    z_RPA = np.random.default_rng(2).normal(0, 3, (3, 8, 10))
    whole_RPA, alone_RPA = z_RPA.copy(), z_RPA[1:2, 3:4].copy()
    softmax_rows(whole_RPA)
    softmax_rows(alone_RPA)
    assert (whole_RPA[1, 3] == alone_RPA[0, 0]).all()
