"""docs/method.md, sections 5 and 9 as a scalar program: advantages of single responses.

Rewards are fractions, so that equal rewards standardise to 0 and not to a rounding error.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from scalar_guard import Verdict, Visit

FLOOR = 1e-6


def scalar_advantages(
    batch: Sequence[Visit], verdicts: Sequence[Verdict], settings: Mapping[str, Any]
) -> tuple[list[list[float]], list[list[float]]]:
    """The majority and the minority advantages of every trained sample of a batch."""
    majority_rewards, minority_rewards = [], []
    for visit, verdict in zip(batch, verdicts, strict=True):
        pay = verdict.weight if settings["weight_on"] == "reward" else Fraction(1)
        hope = pay * Fraction(str(settings["minority_reward"]))
        kept = visit.answers[: visit.n_samples]
        majority_rewards.append([pay * (a >= 0 and a == verdict.label) for a in kept])
        minority_rewards.append([hope * (a in verdict.candidates) for a in kept])
    majority = standardise(majority_rewards, verdicts, settings)
    minority = standardise(minority_rewards, verdicts, settings)
    if settings["mix"] == "bonus":
        for place, (visit, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            majority[place] = with_bonus(majority[place], visit, verdict)
            minority[place] = [0.0] * visit.n_samples
    for stream in (majority, minority):
        for place, verdict in enumerate(verdicts):
            factor = float(verdict.weight) if settings["weight_on"] == "advantage" else 1.0
            factor = 0.0 if verdict.skip else factor
            stream[place] = [factor * value for value in stream[place]]
    return majority, minority


def standardise(
    rewards: Sequence[Sequence[Fraction]], verdicts: Sequence[Verdict], settings: Mapping[str, Any]
) -> list[list[float]]:
    scale = settings["advantage_scale"]
    pool = [
        reward
        for group, verdict in zip(rewards, verdicts, strict=True)
        for reward in group
        if not (verdict.skip and settings["skip_by"] == "drop")
    ]
    advantages = []
    for group in rewards:
        mean = sum(group, Fraction(0)) / len(group)
        by = {"group": spread(group), "batch": spread(pool), "none": 1.0 - FLOOR}[scale] + FLOOR
        advantages.append([float(reward - mean) / by for reward in group])
    return advantages


def spread(values: Sequence[Fraction]) -> float:
    """Unbiased standard deviation; 0 where a single value has none."""
    return float(statistics.stdev(values)) if len(values) > 1 else 0.0


def with_bonus(advantages: Sequence[float], visit: Visit, verdict: Verdict) -> list[float]:
    if not verdict.candidates:
        return list(advantages)
    size = float(verdict.beta) * statistics.fmean(abs(value) for value in advantages)
    total = sum(verdict.candidates.values())
    bonus = {answer: size * n / total for answer, n in verdict.candidates.items()}
    bonus[-1] = 0.05 * statistics.fmean(bonus.values())
    return [
        value + bonus.get(answer, 0.0)
        for value, answer in zip(advantages, visit.answers, strict=False)
    ]
