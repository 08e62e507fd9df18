"""Problems, random numbers by position instead of by sequence, and votes that are drawn with them.

Every random number is a function of (seed, replicate, purpose, epoch, problem, draw) alone. So a
replicate does not depend on which others run with it, two arms with one seed see the same
draws, and any order of computation, on any number of workers, gives the same bits. A key is folded
through SplitMix64's output function once per coordinate; the draws of one key are the SplitMix64
sequence (Steele, Lea, Flood 2014) that starts there.

Votes: the V responses of a visit are independent. Each is unparseable with the constant chance
`unparseable`, else answer a with the policy's probability p_a. `counts` are all V, `samples` the
first K, so samples ~ Multinomial(K, p) and counts - samples ~ Multinomial(V - K, p), independent.
Response v is the answer in whose interval of the cumulated probabilities its uniform number falls.
The numbers are drawn 64 together, a word for each of their bits in turn, until all are known to be
below a bound or not: about 12 words in place of 64, and 64 comparisons in a few operations.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bools, Records = NDArray[np.bool_], NDArray[np.void]
Floats, Ints, Shorts = NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]

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


class Population(NamedTuple):
    """The problems of every replicate before training."""

    p0_RNA: Floats
    """Answer probabilities, each above 0; rows sum to one."""
    truth_RN: Ints
    """Id of the correct answer."""
    attractor_RN: Ints
    """Id of the attractor, a wrong answer."""


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


word = fold
"""64 random bits: draw 0, 1, ... of a key."""


@njit(inline="always")
def unit(key: Any, draw: Any) -> Any:
    """A uniform number in [0, 1) with `DIGITS` bits: draw 0, 1, ... of a key."""
    return float(np.int64(word(key, draw) >> _S11)) * _ULP


LANES, PLANES = 64, 32
"""Numbers that are drawn together by `lanes`, and their bits."""


@njit(cache=True, nogil=True)
def fill_lanes(key: Any, out_D: Floats) -> None:
    """Fill with uniform numbers in [0, 1) with 32 bits, 64 to a block.

    A reader that only compares them can read the words from the first bit on, and few of the bits.
    """
    half, row_K = LANES // 2, np.empty(PLANES, np.uint64)
    for start in range(0, out_D.shape[0], LANES):
        for bit in range(PLANES):
            row_K[bit] = word(key, start + bit)
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
def uniforms(
    seed: int, first: int, replicates: int, purpose: int, epoch: int, n_problems: int
) -> Floats:
    """(R, N) uniform numbers in [0, 1), one per problem."""
    out_RN = np.empty((replicates, n_problems))
    for r in range(replicates):
        key = stream(seed, first + r, purpose, epoch)
        for n in range(n_problems):
            out_RN[r, n] = unit(fold(key, n), 0)
    return out_RN


_PLACES = 2 ** (63 - DIGITS)
"""Problems whose numbers fit into a whole number beside a key."""


def orders(keys_RN: Floats) -> Ints:
    """(R, N) problems in visiting order, per replicate the ranks of random keys in [0, 1)."""
    n_problems = keys_RN.shape[1]
    if n_problems > _PLACES:
        return np.argsort(keys_RN, axis=1)
    # Key and problem in one whole number: sorting numbers is faster than sorting their places.
    packed_RN = (keys_RN * 2.0**DIGITS).astype(np.int64) * _PLACES + np.arange(n_problems)
    packed_RN.sort(axis=1)
    return packed_RN & (_PLACES - 1)


_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (
    1.0 / math.factorial(k) for k in range(2, 14)
)
_LOG2_E = 1.4426950408889634
# ln 2 in two parts: k times the first one is exact for every k that occurs.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0
"""1.5 * 2**52: adding and subtracting it rounds to a whole number."""
_LOWEST = -700.0
"""Below it the exponential is that of -700, about 1e-304; a probability it is 0 all the same."""


@njit(inline="always")
def exp_below_zero(x: Any) -> Any:
    """exp(x) for x <= 0, to less than one unit in the last place.

    x = k ln 2 + r with |r| <= ln 2 / 2; Taylor's series of r to the 13th power, times 2**k.
    """
    x = x if x > _LOWEST else _LOWEST
    rounded = np.float64(x * _LOG2_E + _ROUND)
    k = rounded - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    q = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
    q = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * q)))))
    # The last bits of `rounded` are those of the whole number k; vectors have no conversion of it.
    power = np.int64((rounded.view(np.int64) + 1023) << 52).view(np.float64)
    return (1.0 + (r + r * r * q)) * power


@njit(cache=True, nogil=True)
def softmax_rows(z_RPA: Floats) -> int:
    """Turn logits into probabilities, in place; returns as `exp_rows`."""
    R, P, A = z_RPA.shape
    bad = exp_rows(z_RPA)
    for r in range(R):
        for p in range(P):
            total = 0.0
            for a in range(A):
                total += z_RPA[r, p, a]
            for a in range(A):
                z_RPA[r, p, a] /= total
    return bad


@njit(cache=True, nogil=True)
def exp_rows(z_RPA: Floats) -> int:
    """Turn logits into probabilities that are not normalised, the largest of a row 1, in place.

    Returns:
        -1, or the flat place r * P + p of the first row with a logit that is not finite; what is
        left in that row means nothing.
    """
    R, P, A = z_RPA.shape
    bad = -1
    for r in range(R):
        for p in range(P):
            top = -np.inf
            finite = True
            for a in range(A):
                finite &= np.isfinite(z_RPA[r, p, a])
                top = z_RPA[r, p, a] if z_RPA[r, p, a] > top else top
            if not finite and bad < 0:
                bad = r * P + p
            for a in range(A):
                z_RPA[r, p, a] -= top
        # All of a replicate's rows as one, which is what makes vectors of it.
        z_K = z_RPA[r].reshape(P * A)
        for k in range(P * A):
            z_K[k] = exp_below_zero(z_K[k])
    return bad


_WIDTH = 4
"""Limits that a vector unit compares with at once."""
_M1, _M2, _M4, _BYTES = (
    np.uint64(word)
    for word in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x0101010101010101)
)
_S1, _S2, _S4, _S56 = (np.uint64(shift) for shift in (1, 2, 4, 56))


@njit(inline="always")
def ones(lanes: Any) -> Any:
    """How many bits are set; compilers know this form and make one instruction of it."""
    x = np.uint64(lanes)
    x = x - ((x >> _S1) & _M1)
    x = (x & _M2) + ((x >> _S2) & _M2)
    return np.int64((((x + (x >> _S4)) & _M4) * _BYTES) >> _S56)


@njit(inline="always")
def first_lanes(n: Any) -> Any:
    """A word whose first n bits are set, none for n < 0 and all for n > 64."""
    return np.int64(-1) if n >= LANES else (np.int64(1) << max(n, 0)) - 1


@njit(inline="always")
def zeros(key: Any, block: Any, bit: Any) -> Any:
    """Which of a block's 64 numbers, one a lane, have a 0 as bit 0, 1, ... after the point."""
    return ~np.int64(word(key, block * LANES + bit))


@njit(inline="always")
def read_bit(masks: Any, digits: Any, zeros: Any) -> Any:
    """Compare 64 numbers by one more bit.

    Args:
        masks: numbers known to be below the limit, and those that agree with it so far.
        digits: the limit's bits from this one on.
    """
    below, undecided = masks
    digit = digits >> 63  # In all bits.
    return below | (undecided & digit & zeros), undecided & (zeros ^ digit)


@njit(inline="always")
def compare(leaf: Any, block: Any, lanes: Any, room_3C: Ints) -> None:
    """Write which numbers of a block are below each limit into the second row of `room_3C`.

    Args:
        lanes: the numbers that are needed, a bit for each.
        room_3C: limits, bounds times 2 ** `DIGITS`; output; working memory.
    """
    limit_C, below_C, undecided_C = room_3C[0], room_3C[1], room_3C[2]
    for c in range(limit_C.shape[0]):
        below_C[c] = -(limit_C[c] >> DIGITS)  # All where the bound is 1.
        undecided_C[c] = lanes & ~below_C[c]
    left, bit = lanes, 0
    while left != 0 and bit < DIGITS:
        z0, z1 = zeros(leaf, block, bit), zeros(leaf, block, bit + 1)
        z2, z3 = zeros(leaf, block, bit + 2), zeros(leaf, block, bit + 3)
        z4, z5 = zeros(leaf, block, bit + 4), zeros(leaf, block, bit + 5)
        left = np.int64(0)
        for c in range(limit_C.shape[0]):
            digits, masks = limit_C[c] << (LANES - DIGITS + bit), (below_C[c], undecided_C[c])
            masks = read_bit(masks, digits, z0)
            masks = read_bit(masks, digits << 1, z1)
            masks = read_bit(masks, digits << 2, z2)
            masks = read_bit(masks, digits << 3, z3)
            masks = read_bit(masks, digits << 4, z4)
            below_C[c], undecided_C[c] = read_bit(masks, digits << 5, z5)
            left |= undecided_C[c]
        bit += 6


@njit
def room_for(n_answers: int) -> Ints:
    """Working memory of `draw_row`: whole vectors, whose last limits may be of no answer."""
    return np.zeros((3, -(-n_answers // _WIDTH) * _WIDTH), np.int64)


@njit(inline="always")
def draw_row(
    leaf: Any,
    p_A: Floats,
    parseable: float,
    n_votes: int,
    n_samples: int,
    room_3C: Ints,
    counts_A: Ints,
    samples_A: Ints,
) -> int:
    """Draw the votes on one problem with the numbers of this key, as `draw_votes`.

    Returns:
        How many votes hold an answer.
    """
    A, bound, n_parsed = p_A.shape[0], 0.0, 0
    for a in range(A):
        # At last not the rounded sum, which may fall short of all that can be parsed.
        bound = bound + parseable * p_A[a] if a < A - 1 else parseable
        room_3C[0, a] = np.int64(np.ceil(min(bound, 1.0) * 2.0**DIGITS))
        counts_A[a] = samples_A[a] = 0
    for block in range(-(-n_votes // LANES)):
        drawn = first_lanes(n_votes - block * LANES)
        trained = first_lanes(n_samples - block * LANES)
        compare(leaf, block, drawn, room_3C)
        n_before, n_trained_before = 0, 0
        for a in range(A):
            n, n_trained = ones(room_3C[1, a] & drawn), ones(room_3C[1, a] & trained)
            counts_A[a] += n - n_before
            samples_A[a] += n_trained - n_trained_before
            n_before, n_trained_before = n, n_trained
        n_parsed += n_before
    return n_parsed


@njit(cache=True, nogil=True)
def draw_votes(
    seed: int,
    first: int,
    purpose: int,
    epoch: int,
    problems_RP: Ints,
    p_RPA: Floats,
    parseable: float,
    n_votes: int,
    n_samples: int,
) -> tuple[Ints, Ints]:
    """(R, P, A) all votes of a batch, and the first K of them.

    Args:
        purpose: `VOTES` or `SECOND`.
        parseable: chance that a response holds an answer.
    """
    R, P, A = p_RPA.shape
    counts_RPA, samples_RPA = np.empty((R, P, A), np.int64), np.empty((R, P, A), np.int64)
    room_3C = room_for(A)
    for r in range(R):
        key = stream(seed, first + r, purpose, epoch)
        for p in range(P):
            leaf, p_A = fold(key, problems_RP[r, p]), p_RPA[r, p]
            counts_A, samples_A = counts_RPA[r, p], samples_RPA[r, p]
            draw_row(leaf, p_A, parseable, n_votes, n_samples, room_3C, counts_A, samples_A)
    return counts_RPA, samples_RPA
