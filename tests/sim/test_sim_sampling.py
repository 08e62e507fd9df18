import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chi2, kstest

from sim import SimConfig
from sim.world.observe import MIDDLE, WIDTH, bell
from sim.world.populations import draw_population
from sim.world.sampling import (
    DIGITS,
    LANES,
    ORDER,
    PLANES,
    TIE,
    VOTES,
    draw_votes,
    exp_below_zero,
    fill_lanes,
    fold,
    orders,
    softmax_rows,
    stream,
    uniforms,
    word,
)


def pearson(observed, expected):
    return chi2.sf(((observed - expected) ** 2 / expected).sum(), len(observed) - 1)


KEY = np.uint64(11)
words = np.vectorize(word, otypes=[np.uint64])


def numbers(leaf, n, digits):
    """Uniform numbers of a key, whose bits are those of 64 lanes' words."""
    blocks = -(-n // LANES)
    planes = words(leaf, np.arange(blocks * LANES)).reshape(blocks, LANES)[:, :digits]
    bits = (planes[..., None] >> np.arange(LANES, dtype=np.uint64)) & np.uint64(1)
    return (0.5 ** np.arange(1, digits + 1) @ bits.astype(float)).reshape(-1)[:n]


@pytest.mark.parametrize("parseable", [1.0, 0.6])
@pytest.mark.parametrize(("n_votes", "n_samples"), [(1, 1), (9, 4), (70, 70), (130, 66)])
@pytest.mark.parametrize(
    "p_A",
    [[0.5, 0.5], [0.0, 0.3, 1e-17, 0.2, 0.5, 0.0], [0.3, *[0.02] * 10, 1e-4, 0.2499, 0.25]],
)
def test_a_response_is_the_answer_whose_interval_its_number_falls_into(
    p_A, n_votes, n_samples, parseable
):
    n_answers, n_rows = len(p_A), 100
    p_RPA, problems_RP = np.tile(np.array(p_A), (1, n_rows, 1)), np.arange(n_rows)[None]
    sizes = n_votes, n_samples
    counts, samples = draw_votes(3, 0, VOTES, 2, problems_RP, p_RPA, parseable, *sizes)
    bounds_A = np.append(np.cumsum(parseable * np.array(p_A))[:-1], parseable)
    for n in range(n_rows):
        leaf = np.uint64(fold(np.uint64(stream(3, 0, VOTES, 2)), n))
        answers_V = np.searchsorted(bounds_A, numbers(leaf, n_votes, DIGITS), "right")
        for answers, found in ((answers_V, counts), (answers_V[:n_samples], samples)):
            drawn_A = np.bincount(answers, minlength=n_answers + 1)[:n_answers]
            assert drawn_A.tolist() == found[0, n].tolist()


def test_coordinates_change_every_number():
    base = uniforms(1, 0, 2, TIE, 1, 500)
    for at in ((2, 0, TIE, 1), (1, 2, TIE, 1), (1, 0, ORDER, 1), (1, 0, TIE, 2)):
        other = uniforms(*at[:2], 2, *at[2:], 500)
        assert (base != other).all()
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(1000)
    assert (base[0] != base[1]).all()
    assert VOTES != TIE


def test_uniforms_are_uniform():
    draws = uniforms(11, 0, 10, TIE, 3, 2000).ravel()
    assert draws.min() >= 0 and draws.max() < 1
    assert kstest(draws, "uniform").pvalue > 1e-3


def test_orders_are_uniform_permutations():
    order_RN = orders(uniforms(5, 0, 6000, ORDER, 1, 3))
    assert (np.sort(order_RN, axis=1) == np.arange(3)).all()
    codes = order_RN @ np.array([9, 3, 1])
    seen = np.unique(codes, return_counts=True)[1]
    assert len(seen) == 6
    assert pearson(seen, np.full(6, 1000.0)) > 1e-3


@pytest.mark.parametrize("n_problems", [1, 1024, 1025])
def test_orders_are_those_of_the_random_keys(n_problems):
    keys_RN = uniforms(5, 2, 20, ORDER, 3, n_problems)
    order_RN = orders(keys_RN)
    assert (order_RN == np.argsort(keys_RN, axis=1)).all() and order_RN.dtype == np.int64


def test_populations_are_distributions_with_fair_ids():
    config = SimConfig(n_problems=4000, replicates=2, seed=5)
    population = draw_population(config)
    assert population.p0_RNA.sum(axis=-1) == pytest.approx(1.0)
    assert (population.p0_RNA > 0).all()
    assert (population.truth_RN != population.attractor_RN).all()
    for ids_RN in (population.truth_RN, population.attractor_RN):
        seen = np.bincount(ids_RN.ravel(), minlength=10)
        assert pearson(seen, np.full(10, 800.0)) > 1e-3


exps = np.vectorize(exp_below_zero, otypes=[float])


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


def test_a_bell_is_the_sum_of_a_words_bytes_with_the_moments_and_bounds_it_claims():
    at = np.arange(200_000)
    found = np.vectorize(bell, otypes=[np.int64])(KEY, at)
    octets = words(KEY, at).view(np.uint8).reshape(len(at), 8)
    assert np.array_equal(found, octets.sum(axis=1, dtype=np.int64) - MIDDLE)
    e = found / WIDTH
    assert e.mean() == pytest.approx(0, abs=0.01)
    assert e.var() == pytest.approx(1, abs=0.01)
    assert (e**4).mean() - 3 == pytest.approx(-0.15, abs=0.06)
    most = MIDDLE / WIDTH
    assert pytest.approx(4.88, abs=0.01) == most and np.abs(e).max() <= most


def test_numbers_by_lanes_are_the_planes_bits():
    found = np.empty(LANES + 9)
    fill_lanes(KEY, found)
    assert np.array_equal(found, numbers(KEY, len(found), PLANES))
