"""The GRPO update of one visit as a gradient in the problem's logits.

The samples' advantages depend on the answer alone, so with n_a of K samples on answer a

    g_a = (1/K) * sum_k A_k * (1[a_k = a] - p_a) = (n_a * A_a - p_a * sum_b n_b * A_b) / K.

Both streams of the guard enter as their sum, which is exact where the ratio rho is 1: the batch's
updates are all computed at the probabilities that its votes were drawn from. Unparseable samples
count in K and in the standardisation; their constant log-probability has no gradient. The sum over
the advantages of all K samples is 0, so with every sample parseable the p_a term vanishes.

With two answers and plain TTRL, x = logit p moves by +-2*step*sqrt(q*(1-q)*(K-1)/K), q the share
among the samples (standardisation with n-1, the floor of 1e-6 aside), away from the loser.

`update = "expected"` takes the sampling noise out of the update and leaves it in the vote. Per
visit the label, the minority candidates, weight, beta and skip are those that the guard decided
from the votes and samples drawn; given them, the count n_a of the K samples is replaced by its
mean over a fresh group of samples, K * (1 - unparseable) * p_a, in the rewards' mean and standard
deviation and in the sum over samples. With the reward `answer = label` and every response
parseable, q the label's probability and F = sqrt(q * (1 - q) * (K - 1) / K),

    g_label = F,    g_a = -F * p_a / (1 - q) for the other answers.

So it is the gradient of an infinitely large group under the guard's decision (K stays in the
unbiased standard deviation alone), and expectation is over the K samples as independent of the
label. It is not the mean of the sampled update over all draws that lead to the same label: that
mean has E[F(share)] <= F(q) in place of F(q), and the K samples are among the votes that made the
label. With two answers x = logit p moves by 2 * step * F, the drift of `sim.theory` times its sign.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import PolicyStreams, Route
from guard_core.arrays import Array
from sim.settings.config import SimConfig

_BELOW_ONE = 1.0 - 1e-12
"""Keeps the sum over any set of answers below K in spite of rounding: it goes under a root."""


class Update(NamedTuple):
    """Gradient that moves the policy."""

    gradient_RPA: NDArray[np.float64]
    """Weighted gradient in the logits, 0 where the problem is dropped."""
    drop_RP: NDArray[np.bool_]
    """The problem left the batch."""
    streams_RSPB: NDArray[np.float64] | None = None
    """(R, 2, P, A + 1) weighted advantages per answer of the majority and the minority stream, the
    last place for unparseable responses; only for the policy `measured`."""


def weighted_streams(streams: PolicyStreams, config: SimConfig) -> NDArray[np.float64] | None:
    """Return `Update.streams_RSPB` of streams per answer; None for policies that do not read it."""
    if config.policy != "measured":
        return None
    pair = np.broadcast_arrays(streams.majority, streams.minority)
    return np.stack(pair, axis=1) * streams.weight[:, None, :, None]


def expected_samples(p_RPA: Array, parseable: float, n_samples: int) -> Array:
    """Mean count of each answer among K fresh samples, to stand in for `Votes.samples`.

    Args:
        p_RPA: answer probabilities among parseable responses.
        parseable: chance that a response holds an answer.
        n_samples: K.

    Returns:
        (R, P, A) counts that need not be whole.
    """
    return (_BELOW_ONE * parseable * n_samples) * p_RPA


def sit_out(
    config: SimConfig,
    draws_RP: NDArray[np.float64],
    records_RP: NDArray[np.void],
    update: Update,
) -> Update:
    """Skip a batch's problems with probability `skip_rate`, in addition to the guard's.

    They are voted on and decided on as ever, and not trained on: the control for a guard that
    skips.

    Args:
        config: of the run.
        draws_RP: uniform numbers, the guard's own of the same seed.
        records_RP: the visits, records of `sim.engine.rows.RECORD`; changed in place.
        update: of the batch.

    Returns:
        The update without the skipped problems.
    """
    out_RP = draws_RP < config.skip_rate
    records_RP["skipped"] |= out_RP
    records_RP["route"][out_RP] = Route.SKIPPED
    drop_RP = update.drop_RP | (out_RP & (config.guard.skip_by == "drop"))
    gradient_RPA = np.where(out_RP[..., None], 0.0, update.gradient_RPA)
    streams_RSPB = update.streams_RSPB
    if streams_RSPB is not None:
        streams_RSPB = np.where(out_RP[:, None, :, None], 0.0, streams_RSPB)
    return Update(gradient_RPA, drop_RP, streams_RSPB)


@njit(cache=True, nogil=True)
def logit_gradient(
    samples_RPA: NDArray[Any],
    n_samples: int,
    p_RPA: NDArray[np.float64],
    majority_RPA: NDArray[np.float64],
    minority_RPA: NDArray[np.float64],
    weight_RP: NDArray[np.float64],
    drop_RP: NDArray[np.bool_],
    out_RPA: NDArray[np.float64],
) -> None:
    """Weighted gradient of every problem of the batch, 0 where it is dropped.

    Args:
        samples_RPA: trained samples per answer, or their expectation.
        n_samples: K.
        p_RPA: answer probabilities among parseable responses.
        majority_RPA: advantages per answer, `PolicyStreams.majority`; (R, P, A + 1).
        minority_RPA: the same for the minority stream.
        weight_RP: factor on the problem's loss.
        drop_RP: the problem left the batch.
        out_RPA: output.
    """
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            scale = 0.0 if drop_RP[r, p] else weight_RP[r, p] / n_samples
            total = 0.0
            for a in range(A):
                pay = samples_RPA[r, p, a] * (majority_RPA[r, p, a] + minority_RPA[r, p, a])
                out_RPA[r, p, a] = pay
                total += pay
            for a in range(A):
                out_RPA[r, p, a] = scale * (out_RPA[r, p, a] - p_RPA[r, p, a] * total)


@njit(cache=True, nogil=True)
def sums_gradient(
    sums_RPA: NDArray[np.float64],
    n_samples: int,
    p_RPA: NDArray[np.float64],
    weight_RP: NDArray[np.float64],
    drop_RP: NDArray[np.bool_],
    out_RPA: NDArray[np.float64],
) -> None:
    """Compute the same from advantages that are summed over every answer's responses.

    Args:
        sums_RPA: both streams together.
        n_samples: K.
        p_RPA: answer probabilities among parseable responses.
        weight_RP: factor on the problem's loss.
        drop_RP: the problem left the batch.
        out_RPA: output.
    """
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            scale, total = 0.0 if drop_RP[r, p] else weight_RP[r, p] / n_samples, 0.0
            for a in range(A):
                total += sums_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = scale * (sums_RPA[r, p, a] - p_RPA[r, p, a] * total)


@njit(cache=True, nogil=True)
def sharpen(p_RPA: NDArray[np.float64], out_RPA: NDArray[np.float64]) -> None:
    """The direction in the logits that lowers the answers' entropy H, d(-H)/dz_a.

    It is p_a (log p_a + H): the exact gradient of the loss of one-shot EM, whose tokens stand for
    answers here.
    """
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            entropy = 0.0
            for a in range(A):
                share = p_RPA[r, p, a]
                out_RPA[r, p, a] = np.log(share) if share > 0 else 0.0
                entropy -= share * out_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = p_RPA[r, p, a] * (out_RPA[r, p, a] + entropy)
