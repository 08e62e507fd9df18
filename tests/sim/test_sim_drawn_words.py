"""Random words read as bells, as bit planes and as subsets follow their laws."""

import numpy as np
import pytest
from numba import njit

from sim.rules import _draw_subset, fills_words
from sim.world.observe import MIDDLE, MOST, WIDTH, bell
from sim.world.sampling import LANES, PLANES, fill_lanes, word

KEY = np.uint64(11)


@njit
def _bells(key, out):
    for d in range(out.shape[0]):
        out[d] = bell(key, d)


@njit
def _words(key, out):
    for d in range(out.shape[0]):
        out[d] = word(key, d)


def lanes(key, n):
    out_D = np.empty(n)
    fill_lanes(np.uint64(key), out_D)
    return out_D


def test_a_bell_is_the_sum_of_a_words_bytes():
    words, found = np.empty(100, np.uint64), np.empty(100, np.int64)
    _words(KEY, words)
    _bells(KEY, found)
    by_hand = words.view(np.uint8).reshape(100, 8).sum(axis=1, dtype=np.int64) - MIDDLE
    assert np.array_equal(found, by_hand)


def test_bells_have_the_moments_and_bounds_they_claim():
    found = np.empty(200_000, np.int64)
    _bells(KEY, found)
    e = found / WIDTH
    assert e.mean() == pytest.approx(0, abs=0.01)
    assert e.var() == pytest.approx(1, abs=0.01)
    assert (e**4).mean() - 3 == pytest.approx(-0.15, abs=0.06)
    assert pytest.approx(4.88, abs=0.01) == MOST and np.abs(e).max() <= MOST


def test_numbers_by_lanes_are_uniform_and_have_32_bits():
    u_D = lanes(5, 64_000)
    assert np.histogram(u_D, 20, (0, 1))[0] == pytest.approx(np.full(20, 3200), abs=5 * 3200**0.5)
    whole = u_D * 2.0**PLANES
    assert np.array_equal(whole, np.floor(whole)) and (whole % 2).mean() == pytest.approx(
        0.5, abs=0.01
    )
    assert np.abs(np.corrcoef(u_D.reshape(-1, LANES), rowvar=False) - np.eye(LANES)).max() < 0.15


def test_numbers_by_lanes_are_the_planes_bits():
    bits = np.array([[(int(x) >> lane) & 1 for lane in range(LANES)] for x in _planes(KEY)])
    weights = 0.5 ** np.arange(1, PLANES + 1)
    assert np.array_equal(lanes(KEY, LANES), weights @ bits)


def _planes(key):
    words = np.empty(PLANES, np.uint64)
    _words(key, words)
    return words


@pytest.mark.parametrize("n_votes", [1, 2, 16, 64, 128])
@pytest.mark.parametrize("share", [0.5, 0.25, 1.0])
def test_subsets_are_the_smallest_numbers(n_votes, share):
    n, n_subsets = max(1, int(share * n_votes)), 2 * n_votes - 1
    words_3W = np.empty((3, -(-n_votes // LANES)), np.uint64)
    u_GV = lanes(KEY, n_subsets * n_votes).reshape(-1, n_votes)
    drawn_GV = u_GV <= np.sort(u_GV, axis=1)[:, n - 1 : n]
    for g in range(n_subsets):
        _draw_subset(KEY, g * n_votes, n_votes, n, words_3W)
        found_V = [(int(words_3W[0, v // LANES]) >> (v % LANES)) & 1 for v in range(n_votes)]
        assert found_V == drawn_GV[g].tolist()
    assert (drawn_GV.sum(axis=1) == n).all()


def test_what_does_not_fill_words_is_left_to_guard_core():
    assert [v for v in (1, 3, 8, 48, 64, 96, 128, 192) if fills_words(v)] == [1, 8, 64, 128, 192]
