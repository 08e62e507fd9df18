"""The GRPO update of one visit as a gradient in the problem's logits.

The samples' advantages depend on the answer alone, so with n_a of K samples on answer a

    g_a = (1/K) * sum_k A_k * (1[a_k = a] - p_a) = (n_a * A_a - p_a * sum_b n_b * A_b) / K.

Both streams of the guard enter as their sum, which is exact where the ratio rho is 1: the batch's
updates are all computed at the probabilities that its votes were drawn from. Unparseable samples
count in K and in the standardisation; their constant log-probability has no gradient. The sum over
the advantages of all K samples is 0, so with every sample parseable the p_a term vanishes.

With two answers and plain TTRL, x = logit p moves by +-2*step*sqrt(q*(1-q)*(K-1)/K), q the share
among the samples (standardisation with n-1, the floor of 1e-6 aside), away from the loser.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import PolicyStreams
from sim.settings.config import SimConfig


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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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
