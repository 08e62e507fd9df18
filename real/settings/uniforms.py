"""Uniform numbers of many positions at once, the same as those of one generator each.

NumPy makes one generator at a time, which for a batch of 512 problems takes most of the guard's
time. Its `SeedSequence` and `PCG64` promise their numbers for ever, so they are repeated here over
arrays (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from real.settings.seeds import Stream, generator

Words = NDArray[np.uint32]
Longs = NDArray[np.uint64]
Wide = tuple[Longs, Longs]
"""Numbers of 128 bits: their upper and their lower halves."""

_32, _LOW = np.uint64(32), np.uint64(2**32 - 1)
_TIMES = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
"""Multiplier of the generator."""


def uniforms(
    seed: int, stream: Stream, first_P: NDArray[np.int64], second_P: NDArray[np.int64], n: int
) -> NDArray[np.float64]:
    """Return (P, n): the first numbers of `generator(seed, stream, first, second)` at each place.

    Args:
        seed: of the run.
        stream: their purpose.
        first_P: (P,) first number of the positions, such as the problem.
        second_P: (P,) second one, such as the visit.
        n: numbers of each.
    """
    if n == 0:
        return np.empty((len(first_P), 0))
    if seed >= 2**32:
        places = zip(first_P.tolist(), second_P.tolist(), strict=True)
        return np.array([generator(seed, stream, *place).random(n) for place in places])
    ones = np.ones(len(first_P), np.uint32)
    words = [ones * np.uint32(seed), ones * np.uint32(stream)]
    words += [np.asarray(part).astype(np.uint32) for part in (first_P, second_P)]
    high, low, more_high, more_low = _seeded(words)
    one = np.uint64(1)
    step = (more_high << one) | (more_low >> np.uint64(63)), (more_low << one) | one
    state = _next(_plus(step, (high, low)), step)
    drawn = np.empty((len(first_P), n))
    for i in range(n):
        state = _next(state, step)
        drawn[:, i] = (_output(state) >> np.uint64(11)) * 2.0**-53
    return drawn


def _seeded(words: list[Words]) -> list[Longs]:
    """Four numbers that `SeedSequence` makes of four words."""
    mixed = _hash(0x43B0D7E5, 0x931E8875)
    pool = [mixed(word) for word in words]
    for source in range(4):
        for target in range(4):
            if source != target:
                hashed = np.uint32(0x4973F715) * mixed(pool[source])
                value = np.uint32(0xCA01F9DD) * pool[target] - hashed
                pool[target] = value ^ (value >> np.uint32(16))
    drawn = _hash(0x8B51F9DD, 0x58F38DED)
    halves = [drawn(pool[i % 4]).astype(np.uint64) for i in range(8)]
    return [halves[i] | (halves[i + 1] << _32) for i in range(0, 8, 2)]


def _hash(constant: int, factor: int) -> Callable[[Words], Words]:
    """The hash of `SeedSequence`, whose constant changes from call to call."""

    def hashed(value: Words) -> Words:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * factor % 2**32
        value = value * np.uint32(constant)
        return value ^ (value >> np.uint32(16))

    return hashed


def _plus(one: Wide, other: Wide) -> Wide:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < one[1]), low


def _next(state: Wide, step: Wide) -> Wide:
    """The generator's next state: the state times a constant, plus its own step."""
    high, low = state
    a, b, c, d = low >> _32, low & _LOW, _TIMES[1] >> _32, _TIMES[1] & _LOW
    middle = ((b * d) >> _32) + ((b * c) & _LOW) + ((a * d) & _LOW)
    carried = a * c + ((b * c) >> _32) + ((a * d) >> _32) + (middle >> _32)
    return _plus((carried + high * _TIMES[1] + low * _TIMES[0], low * _TIMES[1]), step)


def _output(state: Wide) -> Longs:
    """64 bits of a state: both halves together, turned by its uppermost bits."""
    value, turn = state[0] ^ state[1], state[0] >> np.uint64(58)
    return (value >> turn) | (value << ((np.uint64(64) - turn) & np.uint64(63)))
