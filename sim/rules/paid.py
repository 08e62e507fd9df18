"""From rewards by answer or response to the gradient in the logits, compiled.

`guard_core.rules.answer_streams`, `response_streams`, `weighed` and `policy_streams` are the source
of truth, for `mix = "loss"` and `advantage_scale = "group"`; other settings are left to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.advantages import STD_FLOOR

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Records = NDArray[np.void]


@njit(cache=True)
def answer_sums(
    samples_RPA: Ints, n_samples: int, rewards_RPA: Floats, direct_RP: Flags, out_RPA: Floats
) -> None:
    """Sum of the advantages of every answer's responses, from rewards by answer.

    Args:
        samples_RPA: trained responses per answer.
        n_samples: K.
        rewards_RPA: (R, P, A + 1); the last column is the unparseable responses'.
        direct_RP: problems whose rewards are advantages as they stand.
        out_RPA: output; (R, P, A).
    """
    R, P, A = samples_RPA.shape
    for r in range(R):
        for p in range(P):
            parsed, total, low, high = 0, 0.0, np.inf, -np.inf
            # Without a branch, since which answers are missing cannot be foretold.
            for a in range(A):
                n, reward = samples_RPA[r, p, a], rewards_RPA[r, p, a]
                parsed, total = parsed + n, total + n * reward
                low, high = min(low, reward if n else np.inf), max(high, reward if n else -np.inf)
            none = n_samples - parsed
            if none > 0:
                low, high = min(low, rewards_RPA[r, p, A]), max(high, rewards_RPA[r, p, A])
            if high == low and not direct_RP[r, p]:
                out_RPA[r, p, :] = 0.0
                continue
            mean = (total + none * rewards_RPA[r, p, A]) / n_samples
            square = none * (rewards_RPA[r, p, A] - mean) ** 2
            for a in range(A):
                square += samples_RPA[r, p, a] * (rewards_RPA[r, p, a] - mean) ** 2
            scale = np.sqrt(square / max(n_samples - 1, 1)) + STD_FLOOR
            mean, scale = (0.0, 1.0) if direct_RP[r, p] else (mean, 1 / scale)
            for a in range(A):
                out_RPA[r, p, a] = samples_RPA[r, p, a] * ((rewards_RPA[r, p, a] - mean) * scale)


@njit(inline="always")
def two_valued_sums(samples_A: Any, n_samples: Any, hits_A: Any, all_hits: Any, out_A: Any) -> None:
    """The same for one problem whose responses get 0 or 1.

    Args:
        samples_A: trained responses per answer.
        n_samples: K.
        hits_A: those that get 1.
        all_hits: all that do, unparseable ones too.
        out_A: output.
    """
    mean = all_hits / n_samples
    square = all_hits * (1 - mean)
    scale = np.sqrt(square / max(n_samples - 1, 1)) + STD_FLOOR
    varied = 0 < all_hits < n_samples
    for a in range(samples_A.shape[0]):
        out_A[a] = (hits_A[a] - samples_A[a] * mean) / scale if varied else 0.0


@njit(cache=True)
def learn_paid(
    settings_1: Records,
    sums_RPA: Floats,
    samples_RPA: Ints,
    n_samples: int,
    rival_hits_RP: Floats,
    minority_RPA: Flags,
    seen_RP: Records,
    p_RPA: Floats,
    gradient_RPA: Floats,
    drop_RP: Flags,
) -> None:
    """Weighted gradient of a batch whose majority stream is a rule's own.

    Args:
        settings_1: of `sim.engine.kernel.settings_record`.
        sums_RPA: the rule's advantages, summed over every answer's responses.
        samples_RPA: trained responses per answer.
        n_samples: K.
        rival_hits_RP: of `count_hits`.
        minority_RPA: minority candidates.
        seen_RP: the decision, records of `sim.engine.rows.SEEN`.
        p_RPA: answer probabilities that the samples were drawn from.
        gradient_RPA: output.
        drop_RP: output; the guard took the problem out of the batch.
    """
    rules = settings_1[0]
    R, P, A = sums_RPA.shape
    for r in range(R):
        for p in range(P):
            seen = seen_RP[r, p]
            kept = 0.0 if seen.skipped else 1.0
            if rules.weigh_advantage:
                kept = kept * seen.weight
            beta, total = seen.beta, 0.0
            won, lost = _rival_pay(rules, rival_hits_RP[r, p], n_samples)
            for a in range(A):
                rival = beta * (kept * (won if minority_RPA[r, p, a] else lost))
                pay = (1 - beta) * (kept * sums_RPA[r, p, a]) + samples_RPA[r, p, a] * rival
                gradient_RPA[r, p, a] = pay
                total += pay
            drop_RP[r, p] = rules.drop and seen.skipped
            scale = (seen.weight if rules.weigh_loss else 1.0) / n_samples
            scale = 0.0 if drop_RP[r, p] else scale
            for a in range(A):
                pay = gradient_RPA[r, p, a] - p_RPA[r, p, a] * total
                gradient_RPA[r, p, a] = scale * pay


@njit(inline="always")
def _rival_pay(rules: Any, hits: float, n_samples: int) -> tuple[float, float]:
    """Advantage of a minority candidate's response, and of any other."""
    reward = rules.minority_reward
    mean = reward * (hits / n_samples)
    pairs = max(n_samples * (n_samples - 1), 1)
    scale = reward * np.sqrt(hits * (n_samples - hits) / pairs) + STD_FLOOR
    return (reward - mean) / scale, -mean / scale


@njit(cache=True)
def weigh(weight_RP: Floats, gradient_RPA: Floats, drop_RP: Flags) -> None:
    """`guard_core.rules.weighed`, in place: problems of weight 0 leave the batch."""
    R, P, A = gradient_RPA.shape
    for r in range(R):
        for p in range(P):
            drop_RP[r, p] = drop_RP[r, p] or weight_RP[r, p] == 0
            for a in range(A):
                gradient_RPA[r, p, a] *= weight_RP[r, p]
