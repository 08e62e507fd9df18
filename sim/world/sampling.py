"""Softmax and votes, in compiled code.

Softmax of many rows of logits is the same for every policy. The exponential is computed here and
not by the system's library. It is several times faster, since the compiler can run it on a whole
vector of numbers, and it gives the same bits on every machine: additions, products and a shift, in
a fixed order.

Votes: V answers per problem, drawn from the policy.

Law: the V responses of a visit are independent. Each is unparseable with the constant chance
`unparseable`, else answer a with the policy's probability p_a. `counts` are all V, `samples` the
first K, so samples ~ Multinomial(K, p) and counts - samples ~ Multinomial(V - K, p), independent.

Response v is the answer in whose interval of the cumulated probabilities its uniform number falls.
Counting the numbers below each bound gives the same counts without a branch per response.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from sim.settings.config import SimConfig
from sim.world.random import DIGITS, VOTES, digits, fold, stream

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
    k = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    q = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
    q = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * q)))))
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return (1.0 + (r + r * r * q)) * power


@njit(cache=True, nogil=True)
def softmax_rows(z_RPA: NDArray[np.float64]) -> int:
    """Turn logits into probabilities, in place.

    Args:
        z_RPA: logits of every answer.

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
        for p in range(P):
            total = 0.0
            for a in range(A):
                total += z_RPA[r, p, a]
            for a in range(A):
                z_RPA[r, p, a] /= total
    return bad


_TRAINED = 32
"""Bit from which a sum of responses holds the trained ones; all of them stand below it."""
_ALL = (1 << _TRAINED) - 1


def sample_votes(
    config: SimConfig, epoch: int, problems_RP: NDArray[np.int64], p_RPA: NDArray[np.float64]
) -> Votes:
    """Return the votes of a batch; rows of `p_RPA` sum to 1, see `draw_votes`."""
    return _sample(config, epoch, problems_RP, p_RPA, 1.0 - config.unparseable)


def sample_all(
    config: SimConfig, epoch: int, problems_RP: NDArray[np.int64], p_RPA: NDArray[np.float64]
) -> Votes:
    """Return the votes of a batch; what a row of `p_RPA` lacks of 1 is unparseable."""
    # Unparseable is drawn as the last answer, which takes what the others leave.
    p_RPB = np.pad(p_RPA, ((0, 0), (0, 0), (0, 1)))
    votes = _sample(config, epoch, problems_RP, p_RPB, 1.0)
    counts_RPA, samples_RPA = (
        np.ascontiguousarray(rows[..., :-1]) for rows in (votes.counts, votes.samples)
    )
    return Votes(counts_RPA, samples_RPA, votes.n_votes, votes.n_samples)


def with_unparseable(votes: Votes) -> NDArray[np.int64]:
    """Return (R, P, A + 1) trained samples per answer, the last place for unparseable ones."""
    missing_RP = votes.n_samples - votes.samples.sum(axis=-1)
    return np.concatenate([votes.samples, missing_RP[..., None]], axis=-1)


def _sample(
    config: SimConfig,
    epoch: int,
    problems_RP: NDArray[np.int64],
    p_RPA: NDArray[np.float64],
    parseable: float,
) -> Votes:
    counts_RPA = np.empty(p_RPA.shape, np.int64)
    samples_RPA = np.empty_like(counts_RPA)
    draw_votes(
        config.seed,
        config.first_replicate,
        epoch,
        problems_RP,
        p_RPA,
        parseable,
        config.n_votes,
        counts_RPA,
        samples_RPA,
        config.n_samples,
    )
    return Votes(counts_RPA, samples_RPA, config.n_votes, config.n_samples)


@njit(cache=True, nogil=True)
def draw_votes(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: NDArray[np.int64],
    p_RPA: NDArray[np.float64],
    parseable: float,
    n_votes: int,
    counts_RPA: NDArray[np.int64],
    samples_RPA: NDArray[np.int64],
    n_samples: int,
) -> None:
    """Draw the votes of a batch into `counts_RPA` and `samples_RPA`.

    Args:
        epoch: 0 before training; together with the problem it names the random numbers.
        problems_RP: the batch's problems.
        p_RPA: answer probabilities; rows sum to one.
        parseable: chance that a response holds an answer.
        counts_RPA: output; votes per answer over all V.
        samples_RPA: output; votes per answer over the first K.
    """
    R, P, A = p_RPA.shape
    x_V, one_V = np.empty(n_votes, np.int64), np.ones(n_votes, np.int64)
    one_V[:n_samples] += 1 << _TRAINED
    total = n_votes + (n_samples << _TRAINED)
    for r in range(R):
        key = stream(seed, first + r, VOTES, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for v in range(n_votes):
                x_V[v] = digits(leaf, v)
            bound, before = 0.0, 0
            for a in range(A):
                # At last not the rounded sum, which may fall short of all that can be parsed.
                bound = bound + parseable * p_RPA[r, p, a] if a < A - 1 else parseable
                below = total
                if before < total and bound < 1:
                    # Whole numbers are compared: for vectors of them the compiler has better code.
                    limit, below = np.int64(np.ceil(bound * 2.0**DIGITS)), 0
                    for v in range(n_votes):
                        below += one_V[v] if x_V[v] < limit else 0
                samples_RPA[r, p, a] = (below - before) >> _TRAINED
                counts_RPA[r, p, a] = (below - before) & _ALL
                before = below
