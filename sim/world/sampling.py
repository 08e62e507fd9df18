"""Votes: V answers per problem, drawn from the policy in compiled code.

Law: the V responses of a visit are independent. Each is unparseable with the constant chance
`unparseable`, else answer a with the policy's probability p_a. `counts` are all V, `samples` the
first K, so samples ~ Multinomial(K, p) and counts - samples ~ Multinomial(V - K, p), independent.

Response v is the answer in whose interval of the cumulated probabilities its uniform number falls.
Counting the numbers below each bound gives the same counts without a branch per response.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from sim.settings.config import SimConfig
from sim.world.random import DIGITS, VOTES, digits, fold, stream

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
        seed: of the run.
        first: number of the first replicate.
        epoch: 0 before training; together with the problem it names the random numbers.
        problems_RP: the batch's problems.
        p_RPA: answer probabilities; rows sum to one.
        parseable: chance that a response holds an answer.
        n_votes: V.
        counts_RPA: output; votes per answer over all V.
        samples_RPA: output; votes per answer over the first K.
        n_samples: K.
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
