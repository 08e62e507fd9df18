"""Random subsets of a problem's responses: those with the n smallest of V uniform numbers, each.

Compared bit by bit, the first bits of 64 numbers being one random word (`sim.world.random.plane`),
a few
words tell. All subsets are looked at side by side, without a branch, so that compilers vectorise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.rules.bits import size_of, span
from sim.world.random import LANES, PLANES, plane

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_NONE, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


def fits(n_votes: int) -> bool:
    """Whether subsets of that many responses fill words, or lie side by side in one."""
    return n_votes % LANES == 0 or LANES % n_votes == 0


class Subsets(NamedTuple):
    """G subsets of V responses, as W words each, and room to draw them."""

    drawn_WG: Words
    open_WG: Words
    """Not decided."""
    zero_WG: Words
    """Undecided ones whose number goes on with a 0."""
    block_G: Ints
    """Where a subset's numbers start: the block of 64 numbers."""
    shift_G: Words
    """The lane in it."""
    need_G: Ints
    """How many are missing in a subset."""
    left_G: Ints
    """How many are undecided."""
    low_G: Ints
    """How many of these go on with a 0."""
    over_G: Words
    """All bits where these are more than are missing."""
    all_G: Words
    """All bits where just as many are left as are missing."""
    done_G: Words
    """All bits where nothing is left to decide."""


def room_for(n_subsets: int, n_votes: int) -> Subsets:
    """Room for G subsets, whose numbers follow each other from draw 0 on."""
    start_G = np.arange(n_subsets) * n_votes
    W = -(-n_votes // LANES)

    def words(*shape: int) -> Words:
        return np.zeros(shape, np.uint64)

    return Subsets(
        drawn_WG=words(W, n_subsets),
        open_WG=words(W, n_subsets),
        zero_WG=words(W, n_subsets),
        block_G=start_G // LANES,
        shift_G=(start_G % LANES).astype(np.uint64),
        need_G=np.zeros(n_subsets, np.int64),
        left_G=np.zeros(n_subsets, np.int64),
        low_G=np.zeros(n_subsets, np.int64),
        over_G=words(n_subsets),
        all_G=words(n_subsets),
        done_G=words(n_subsets),
    )


@njit
def draw_subsets(leaf: np.uint64, V: int, n: int, of: Subsets) -> None:
    """Draw them all; numbers that are equal in all bits are all in or all out.

    Args:
        leaf: names the random numbers.
        V: number of responses.
        n: how many are drawn.
        of: the subsets; `drawn_WG` is the output.
    """
    W, G = of.drawn_WG.shape
    of.drawn_WG[:], of.open_WG[:] = _NONE, span(0, min(V, LANES))
    of.need_G[:], of.left_G[:] = n, V
    if n == V:
        of.drawn_WG[:] = of.open_WG
        return
    for bit in range(PLANES):
        of.low_G[:] = 0
        for w in range(W):
            for g in range(G):
                x = plane(leaf, of.block_G[g] + w, bit) >> of.shift_G[g]
                of.zero_WG[w, g] = of.open_WG[w, g] & ~x
                of.low_G[g] += size_of(of.zero_WG[w, g])
        _narrow(of)
        undecided = _NONE
        for w in range(W):
            for g in range(G):
                zero, over = of.zero_WG[w, g], of.over_G[g]
                rest = (zero & over) | ((of.open_WG[w, g] ^ zero) & ~over)
                of.drawn_WG[w, g] |= (zero & ~over) | (rest & of.all_G[g])
                of.open_WG[w, g] = rest & ~of.done_G[g]
                undecided |= of.open_WG[w, g]
        if undecided == _NONE:
            return
    for w in range(W):
        for g in range(G):
            of.drawn_WG[w, g] |= of.open_WG[w, g]


@njit(inline="always")
def _narrow(of: Any) -> None:
    """What the zeros mean: too many of them stay undecided, else they are in."""
    for g in range(of.low_G.shape[0]):
        low, need, left = of.low_G[g], of.need_G[g], of.left_G[g]
        over = low > need
        need = need if over else need - low
        left = low if over else left - low
        of.over_G[g] = _ALL if over else _NONE
        of.all_G[g] = _ALL if left == need else _NONE
        of.done_G[g] = _ALL if (left == need) or (need == 0) else _NONE
        of.need_G[g], of.left_G[g] = need, left
