"""Random words read as bells, as bit planes and as subsets follow their laws."""

import numpy as np
import pytest
from numba import njit

from sim.rules.bits import size_of, span
from sim.rules.subsets import draw_subsets, fits, room_for
from sim.world.observe.bell import MIDDLE, MOST, WIDTH, bell
from sim.world.random import LANES, PLANES, fill_lanes, word

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


def test_a_shorter_row_of_numbers_is_the_beginning_of_a_longer_one():
    assert np.array_equal(lanes(5, 70), lanes(5, 200)[:70])
    assert not np.array_equal(lanes(6, 70), lanes(5, 70))


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 3), (5, 2), (0, 64), (63, 64), (3, 17)])
def test_spans_hold_their_members(start, stop):
    expected = sum(1 << bit for bit in range(start, stop))
    assert int(span(start, stop)) == expected
    assert size_of(np.uint64(expected)) == max(stop - start, 0)


@pytest.mark.parametrize("n_votes", [1, 2, 16, 64, 128])
@pytest.mark.parametrize("share", [0.5, 0.25, 1.0])
def test_subsets_are_the_smallest_numbers(n_votes, share):
    n = max(1, int(share * n_votes))
    of = room_for(2 * n_votes - 1, n_votes)
    draw_subsets(KEY, n_votes, n, of)
    u_GV = lanes(KEY, (2 * n_votes - 1) * n_votes).reshape(-1, n_votes)
    drawn_GV = u_GV <= np.sort(u_GV, axis=1)[:, n - 1 : n]
    words_WG = np.zeros_like(of.drawn_WG)
    for v in range(n_votes):
        words_WG[v // LANES] |= drawn_GV[:, v].astype(np.uint64) << np.uint64(v % LANES)
    assert np.array_equal(of.drawn_WG, words_WG)
    assert (drawn_GV.sum(axis=1) == n).all()


def test_what_does_not_fit_words_is_left_to_guard_core():
    assert [v for v in (1, 3, 8, 48, 64, 96, 128, 192) if fits(v)] == [1, 8, 64, 128, 192]
