"""Votes: V answers per problem, drawn from the policy in compiled code.

Law: the V responses of a visit are independent. Each is unparseable with the constant chance
`unparseable`, else answer a with the policy's probability p_a. `counts` are all V, `samples` the
first K, so samples ~ Multinomial(K, p) and counts - samples ~ Multinomial(V - K, p), independent.

Response v is the answer in whose interval of the cumulated probabilities its uniform number falls;
counting the numbers below each bound needs no branch and gives the same counts.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from sim.settings.config import SimConfig
from sim.world.random import VOTES, fold, stream, unit


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


@njit(cache=True)
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
    u_V = np.empty(n_votes)
    for r in range(R):
        key = stream(seed, first + r, VOTES, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for v in range(n_votes):
                u_V[v] = unit(leaf, v)
            bound = 0.0
            below_samples = 0
            below_all = 0
            for a in range(A):
                bound += parseable * p_RPA[r, p, a]
                if a == A - 1:
                    bound = parseable  # not the rounded sum, which may fall short of it
                in_samples = 0
                for v in range(n_samples):
                    in_samples += u_V[v] < bound
                in_all = in_samples
                for v in range(n_samples, n_votes):
                    in_all += u_V[v] < bound
                samples_RPA[r, p, a] = in_samples - below_samples
                counts_RPA[r, p, a] = in_all - below_all
                below_samples = in_samples
                below_all = in_all
