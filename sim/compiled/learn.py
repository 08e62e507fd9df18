"""From a decision to the gradient in the logits, compiled.

`guard_core.answer_advantages`, `guard_core.policy_streams` and `sim.gradient` stay the single
source of truth: the same operations stand here in the same order, so that the results agree to the
last bit; the tests hold them against each other. What is gained is that little is written down per
answer: an answer's advantage is `won` where it is rewarded and `lost` where it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.advantages import STD_FLOOR
from sim.compiled.pairwise import numpy_sum

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]
Counts = NDArray[Any]
"""Samples per answer: integers, or floats where they are expected ones."""


@njit(cache=True)
def learn(
    rules_1: Records,
    on_truth: bool,
    truth_RN: NDArray[np.int32],
    samples_RPA: Counts,
    n_samples: int,
    sampled: bool,
    counted_RPA: Ints,
    minority_RPA: Flags,
    seen_RN: Records,
    start: int,
    p_RPA: Floats,
    gradient_RPA: Floats,
    drop_RP: Flags,
) -> None:
    """Weighted gradient of every problem of the batch, 0 where it is dropped.

    Args:
        rules_1: the guard's settings, see `sim.compiled.rules`.
        on_truth: train on the true answer in place of the label.
        truth_RN: true answers, in visiting order.
        samples_RPA: trained samples per answer.
        n_samples: K.
        sampled: the samples are whole numbers.
        counted_RPA: responses per answer that minority candidates were chosen by.
        minority_RPA: minority candidates; what is trained on is none of them.
        seen_RN: the decision, see `sim.rows.SEEN`, in columns `start` to `start + P`.
        start: place of the batch's first visit in the epoch.
        p_RPA: answer probabilities that the samples were drawn from.
        gradient_RPA: output.
        drop_RP: output; the problem left the batch.
    """
    rules = rules_1[0]
    R, P, _A = samples_RPA.shape
    label_RP, hits_RP, rival_hits_RP = (
        np.empty((R, P), np.int64),
        np.empty((R, P)),
        np.empty((R, P)),
    )
    std_R, rival_std_R = np.zeros(R), np.zeros(R)
    seen_RP = seen_RN[:, start : start + P]
    for r in range(R):
        for p in range(P):
            label_RP[r, p] = truth_RN[r, start + p] if on_truth else seen_RP[r, p].label
    _count_hits(samples_RPA, sampled, label_RP, minority_RPA, hits_RP, rival_hits_RP)
    if rules.scale_batch:
        _batch_std(rules, hits_RP, n_samples, 1.0, seen_RP, std_R)
        _batch_std(rules, rival_hits_RP, n_samples, rules.minority_reward, seen_RP, rival_std_R)
    if rules.bonus:
        _pay_bonus(
            rules,
            seen_RP,
            hits_RP,
            std_R,
            samples_RPA,
            n_samples,
            counted_RPA,
            label_RP,
            minority_RPA,
            gradient_RPA,
        )
    else:
        _pay_streams(
            rules,
            seen_RP,
            hits_RP,
            std_R,
            rival_hits_RP,
            rival_std_R,
            samples_RPA,
            n_samples,
            label_RP,
            minority_RPA,
            gradient_RPA,
        )
    _subtract_mean(rules, seen_RP, n_samples, p_RPA, gradient_RPA, drop_RP)


@njit
def _count_hits(
    samples_RPA: Counts,
    sampled: bool,
    label_RP: Ints,
    minority_RPA: Flags,
    hits_RP: Floats,
    rival_hits_RP: Floats,
) -> None:
    """Samples on what is trained on, and on the minority candidates."""
    R, P, A = samples_RPA.shape
    rivals_A = np.empty(A)
    for r in range(R):
        for p in range(P):
            label = label_RP[r, p]
            total = 0.0
            for a in range(A):
                rivals = samples_RPA[r, p, a] if minority_RPA[r, p, a] and a != label else 0
                rivals_A[a] = rivals
                total += rivals
            hits_RP[r, p] = samples_RPA[r, p, label] if label >= 0 else 0
            # Whole numbers add up to the same in any order.
            rival_hits_RP[r, p] = total if sampled else numpy_sum(rivals_A)


@njit(inline="always")
def _pay(
    rules: Any, hits: float, n_samples: int, reward: float, batch_std: float
) -> tuple[float, float]:
    """`advantages._standardise`: the advantage of a rewarded sample, and of any other."""
    mean = reward * (hits / n_samples)
    if not (rules.scale_group or rules.scale_batch):
        return reward - mean, -mean
    scale = batch_std
    if rules.scale_group:
        pairs = max(n_samples * (n_samples - 1), 1)
        scale = reward * np.sqrt(hits * (n_samples - hits) / pairs)
    scale = scale + STD_FLOOR
    return (reward - mean) / scale, -mean / scale


@njit(inline="always")
def _kept(rules: Any, skipped: bool, weight: float) -> float:
    """Factor on the advantages: 0 for a skipped problem, and perhaps the weight."""
    kept = 0.0 if skipped else 1.0
    return kept * weight if rules.weigh_advantage else kept


@njit
def _pay_streams(
    rules: Any,
    seen_RP: Records,
    hits_RP: Floats,
    std_R: Floats,
    rival_hits_RP: Floats,
    rival_std_R: Floats,
    samples_RPA: Counts,
    n_samples: int,
    label_RP: Ints,
    minority_RPA: Flags,
    out_RPA: Floats,
) -> None:
    """Samples times advantage per answer, `mix="loss"`: the sum of both streams."""
    R, P, A = samples_RPA.shape
    for r in range(R):
        for p in range(P):
            weight, beta = seen_RP[r, p].weight, seen_RP[r, p].beta
            kept = _kept(rules, seen_RP[r, p].skipped, weight)
            reward = weight if rules.weigh_reward else 1.0
            won, lost = _pay(rules, hits_RP[r, p], n_samples, reward, std_R[r])
            reward = rules.minority_reward * reward
            rival_won, rival_lost = _pay(
                rules, rival_hits_RP[r, p], n_samples, reward, rival_std_R[r]
            )
            won, lost = (1 - beta) * (won * kept), (1 - beta) * (lost * kept)
            rival_won, rival_lost = beta * (rival_won * kept), beta * (rival_lost * kept)
            rival, other = lost + rival_won, lost + rival_lost
            for a in range(A):
                out_RPA[r, p, a] = samples_RPA[r, p, a] * (
                    rival if minority_RPA[r, p, a] else other
                )
            label = label_RP[r, p]
            if label >= 0:
                out_RPA[r, p, label] = samples_RPA[r, p, label] * (won + rival_lost)


@njit
def _pay_bonus(
    rules: Any,
    seen_RP: Records,
    hits_RP: Floats,
    std_R: Floats,
    samples_RPA: Counts,
    n_samples: int,
    counted_RPA: Ints,
    label_RP: Ints,
    minority_RPA: Flags,
    out_RPA: Floats,
) -> None:
    """Samples times advantage per answer, `mix="bonus"`: `advantages._bonus` on top."""
    R, P, A = samples_RPA.shape
    for r in range(R):
        for p in range(P):
            hits, label, weight = hits_RP[r, p], label_RP[r, p], seen_RP[r, p].weight
            kept = _kept(rules, seen_RP[r, p].skipped, weight)
            reward = weight if rules.weigh_reward else 1.0
            won, lost = _pay(rules, hits, n_samples, reward, std_R[r])
            size = (hits * won - (n_samples - hits) * lost) / n_samples
            size = seen_RP[r, p].beta * size
            votes = 0
            for a in range(A):
                votes += counted_RPA[r, p, a] if minority_RPA[r, p, a] and a != label else 0
            for a in range(A):
                share = 0.0
                if minority_RPA[r, p, a] and a != label:
                    share = counted_RPA[r, p, a] / max(votes, 1)
                advantage = ((won if a == label else lost) + size * share) * kept
                # The other stream is 0, which turns -0.0 into 0.0.
                out_RPA[r, p, a] = samples_RPA[r, p, a] * (advantage + 0.0)


@njit
def _subtract_mean(
    rules: Any,
    seen_RP: Records,
    n_samples: int,
    p_RPA: Floats,
    out_RPA: Floats,
    drop_RP: Flags,
) -> None:
    """The softmax part of `sim.gradient.logit_gradient`, in place."""
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            drop_RP[r, p] = rules.drop and seen_RP[r, p].skipped
            scale = (seen_RP[r, p].weight if rules.weigh_loss else 1.0) / n_samples
            scale = 0.0 if drop_RP[r, p] else scale
            total = 0.0
            for a in range(A):
                total += out_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = scale * (out_RPA[r, p, a] - p_RPA[r, p, a] * total)


@njit
def _batch_std(
    rules: Any, hits_RP: Floats, n_samples: int, factor: float, seen_RP: Records, std_R: Floats
) -> None:
    """`advantages._batch_std` of rewards that are `factor` times the majority's."""
    R, P = hits_RP.shape
    first_P, second_P = np.empty(P), np.empty(P)
    for r in range(R):
        n_kept = 0
        for p in range(P):
            reward = factor * seen_RP[r, p].weight if rules.weigh_reward else factor
            kept = 0.0 if rules.drop and seen_RP[r, p].skipped else 1.0
            n_kept += kept > 0
            first_P[p] = kept * reward * hits_RP[r, p]
            second_P[p] = kept * reward * reward * hits_RP[r, p]
        first, second = numpy_sum(first_P), numpy_sum(second_P)
        total = n_kept * n_samples
        spread = second - first * first / max(total, 1)
        std_R[r] = np.sqrt(max(spread, 0.0) / max(total - 1, 1))
