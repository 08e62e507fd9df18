"""From a decision to the gradient in the logits, compiled.

`guard_core.answer_advantages`, `guard_core.policy_streams` and `sim.engine.gradient` stay the
single
source of truth, see `sim.engine.label`. What is gained is that little is written down per answer:
an answer's advantage is `won` where it is rewarded and `lost` where it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.advantages import STD_FLOOR

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]
Counts = NDArray[Any]
"""Samples per answer: integers, or floats where they are expected ones."""


@njit(cache=True)
def count_hits(
    on_truth: bool,
    truth_RN: NDArray[np.int32],
    samples_RPA: Counts,
    minority_RPA: Flags,
    seen_RN: Records,
    start: int,
    label_RP: Ints,
    hits_RP: Floats,
    rival_hits_RP: Floats,
) -> None:
    """Settle what is trained on, and count the samples that hit it or a minority candidate.

    Args:
        on_truth: train on the true answer in place of the label.
        truth_RN: true answers, in visiting order.
        samples_RPA: trained samples per answer.
        minority_RPA: minority candidates; what is trained on is taken out.
        seen_RN: the decision, see `sim.engine.rows.SEEN`, in columns `start` to `start + P`.
        start: place of the batch's first visit in the epoch.
        label_RP: output; what is trained on.
        hits_RP: output.
        rival_hits_RP: output.
    """
    R, P, A = samples_RPA.shape
    for r in range(R):
        for p in range(P):
            label = truth_RN[r, start + p] if on_truth else seen_RN[r, start + p].label
            hits = 0.0
            if label >= 0:
                hits += samples_RPA[r, p, label]
                minority_RPA[r, p, label] = False
            rival_hits = 0.0
            for a in range(A):
                rival_hits += samples_RPA[r, p, a] if minority_RPA[r, p, a] else 0
            label_RP[r, p] = label
            hits_RP[r, p] = hits
            rival_hits_RP[r, p] = rival_hits


@njit(cache=True)
def learn(
    rules_1: Records,
    samples_RPA: Counts,
    n_samples: int,
    hits_RP: Floats,
    rival_hits_RP: Floats,
    counted_RPA: Ints,
    label_RP: Ints,
    minority_RPA: Flags,
    seen_RN: Records,
    start: int,
    p_RPA: Floats,
    gradient_RPA: Floats,
    drop_RP: Flags,
) -> None:
    """Weighted gradient of every problem of the batch, 0 where it is dropped.

    Args:
        rules_1: the guard's settings, see `sim.engine.guard_settings`.
        samples_RPA: trained samples per answer.
        n_samples: K.
        hits_RP: of `count_hits`.
        rival_hits_RP: the same.
        counted_RPA: responses per answer that minority candidates were chosen by.
        label_RP: what is trained on.
        minority_RPA: minority candidates, what is trained on not among them.
        seen_RN: the decision, see `sim.engine.rows.SEEN`, in columns `start` to `start + P`.
        start: place of the batch's first visit in the epoch.
        p_RPA: answer probabilities that the samples were drawn from.
        gradient_RPA: output.
        drop_RP: output; the problem left the batch.
    """
    rules = rules_1[0]
    seen_RP = seen_RN[:, start : start + samples_RPA.shape[1]]
    std_R, rival_std_R = np.zeros(seen_RP.shape[0]), np.zeros(seen_RP.shape[0])
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
                votes += counted_RPA[r, p, a] if minority_RPA[r, p, a] else 0
            for a in range(A):
                share = 0.0
                if minority_RPA[r, p, a]:
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
    """The softmax part of `sim.engine.gradient.logit_gradient`, in place."""
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
    for r in range(R):
        n_kept, first, second = 0, 0.0, 0.0
        for p in range(P):
            reward = factor * seen_RP[r, p].weight if rules.weigh_reward else factor
            kept = 0.0 if rules.drop and seen_RP[r, p].skipped else 1.0
            n_kept += kept > 0
            first += kept * reward * hits_RP[r, p]
            second += kept * reward * reward * hits_RP[r, p]
        total = n_kept * n_samples
        spread = second - first * first / max(total, 1)
        std_R[r] = np.sqrt(max(spread, 0.0) / max(total - 1, 1))
