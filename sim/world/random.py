"""Random numbers by position instead of by sequence.

Every random number is a function of (seed, replicate, purpose, epoch, problem, draw) alone. So a
replicate does not depend on which others run with it, two arms with one seed see the same
draws, and any order of computation, on any number of workers, gives the same bits.

A key is folded through SplitMix64's output function once per coordinate; the draws of one key are
the SplitMix64 sequence (Steele, Lea, Flood 2014) that starts there.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

VOTES, TIE, SKIP, PICK, ORDER = range(5)
SECOND, SECOND_ORDER, CONFIDENCE, TOOL, VERDICT, ODDNESS, RULE = range(5, 12)
LEAVES, DEAL = 12, 13
"""Purpose of a random number; numbers of different purposes are independent."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
DIGITS = 53
"""Bits of a uniform number."""
_S27, _S30, _S31, _S11 = (np.uint64(shift) for shift in (27, 30, 31, 11))
_ULP = 2.0**-DIGITS
_HALF = np.uint64(0xFFFFFFFF)


_SPAWN = {"population": 0, "loadings": 1, "weights": 2}


def generator(
    seed: int, replicate: int, purpose: Literal["population", "loadings", "weights"]
) -> np.random.Generator:
    """NumPy's generator for the laws that a replicate draws once, before it starts."""
    key = (replicate, _SPAWN[purpose])
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


@njit(inline="always")
def mix(x: Any) -> Any:
    """SplitMix64's bijection of 64-bit words."""
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@njit(inline="always")
def fold(key: Any, coordinate: Any) -> Any:
    """The key of one value of the next coordinate."""
    return mix(key + (np.uint64(coordinate) + np.uint64(1)) * _GOLDEN)


@njit(inline="always")
def stream(seed: Any, replicate: Any, purpose: Any, epoch: Any) -> Any:
    """The key of one replicate, purpose and epoch; fold in the problem to draw."""
    return fold(fold(fold(mix(np.uint64(seed)), replicate), purpose), epoch)


@njit(inline="always")
def word(key: Any, draw: Any) -> Any:
    """64 random bits: draw 0, 1, ... of a key."""
    return mix(key + (np.uint64(draw) + np.uint64(1)) * _GOLDEN)


@njit(inline="always")
def digits(key: Any, draw: Any) -> Any:
    """`unit` times 2 ** `DIGITS`, a whole number."""
    return np.int64(word(key, draw) >> _S11)


@njit(inline="always")
def unit(key: Any, draw: Any) -> Any:
    """A uniform number in [0, 1) with `DIGITS` bits: draw 0, 1, ... of a key."""
    return float(digits(key, draw)) * _ULP


LANES, PLANES = 64, 32
"""Numbers that are drawn together by `lanes`, and their bits."""


@njit(inline="always")
def plane(key: Any, block: Any, bit: Any) -> Any:
    """One bit of each of 64 uniform numbers: bit 0, 1, ... after the point, one number a lane."""
    return word(key, block * PLANES + bit)


@njit(cache=True, nogil=True)
def fill_lanes(key: Any, out_D: NDArray[np.float64]) -> None:
    """Fill with uniform numbers in [0, 1) with 32 bits, 64 to a block.

    A reader that only compares them can read the words from the first bit on, and few of the bits.
    """
    half, row_K = LANES // 2, np.empty(PLANES, np.uint64)
    for start in range(0, out_D.shape[0], LANES):
        for bit in range(PLANES):
            row_K[bit] = plane(key, start // LANES, bit)
        _transpose(row_K)
        for d in range(start, min(start + LANES, out_D.shape[0])):
            lane = d - start
            bits = row_K[half - 1 - lane % half] >> np.uint64(half * (lane // half))
            out_D[d] = float(bits & _HALF) / 2.0**PLANES


@njit
def _transpose(row_K: NDArray[np.uint64]) -> None:
    """Transpose two 32 x 32 bit matrices side by side, in place (Warren, Hacker's Delight)."""
    shift, mask = 16, np.uint64(0x0000FFFF0000FFFF)
    while shift:
        s = np.uint64(shift)
        for block in range(0, PLANES, 2 * shift):
            for k in range(block, block + shift):
                swap = (row_K[k] ^ (row_K[k + shift] >> s)) & mask
                row_K[k] ^= swap
                row_K[k + shift] ^= swap << s
        shift //= 2
        mask ^= mask << np.uint64(shift)


@njit(cache=True, nogil=True)
def _fill(seed: int, first: int, purpose: int, epoch: int, out_RN: NDArray[np.float64]) -> None:
    for r in range(out_RN.shape[0]):
        key = stream(seed, first + r, purpose, epoch)
        for n in range(out_RN.shape[1]):
            out_RN[r, n] = unit(fold(key, n), 0)


def uniforms(
    seed: int, first: int, replicates: int, purpose: int, epoch: int, n_problems: int
) -> NDArray[np.float64]:
    """One uniform number in [0, 1) per replicate and problem.

    Args:
        purpose: `TIE`, `SKIP`, `PICK` or `ORDER`.
        epoch: 0 before training.

    Returns:
        (R, N).
    """
    out_RN = np.empty((replicates, n_problems))
    _fill(seed, first, purpose, epoch, out_RN)
    return out_RN


def orders(
    seed: int, first: int, replicates: int, epoch: int, n_problems: int
) -> NDArray[np.int64]:
    """A fresh uniform permutation of the problems per replicate: the ranks of random keys.

    Returns:
        (R, N) problem indices in visiting order.
    """
    keys_RN = uniforms(seed, first, replicates, ORDER, epoch, n_problems)
    # Without equal keys all kinds of sorting agree, and the default one is much the fastest.
    order_RN = np.argsort(keys_RN, axis=1)
    sorted_RN = np.take_along_axis(keys_RN, order_RN, axis=1)
    tied = (sorted_RN[:, 1:] == sorted_RN[:, :-1]).any()
    return np.argsort(keys_RN, axis=1, kind="stable") if tied else order_RN
