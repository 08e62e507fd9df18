"""The advantages of one visit of one problem, on plain numbers.

`answer_advantages` and `policy_streams` of guard_core state the same law for arrays; see
`guard_core.visit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from guard_core.advantages import STD_FLOOR
from guard_core.visit import Numbers, Settings


def standardised(s: Settings, hits: float, reward: float, std: float) -> tuple[float, float]:
    """Return the advantage of a sample that gets the reward, and of one that gets nothing.

    Args:
        s: settings.
        hits: samples that get it.
        reward: at least 0.
        std: standard deviation of the batch's rewards, read for `advantage_scale = "batch"`.
    """
    mean = reward * (hits / s.n_samples)
    if not (s.scale_group or s.scale_batch):
        return reward - mean, -mean
    if s.scale_group:
        pairs = max(s.n_samples * (s.n_samples - 1), 1)
        std = reward * sqrt(hits * (s.n_samples - hits) / pairs)
    std = std + STD_FLOOR
    return (reward - mean) / std, -mean / std


def lessened(s: Settings, advantage: float) -> float:
    """Return the advantage, a negative one times `negative_scale`."""
    return s.negative_scale * advantage if advantage < 0 else advantage


def batch_std(s: Settings, hits: Sequence[float], factor: float, visits: Any) -> float:
    """Return the standard deviation of a batch's rewards, `factor` times the weight or 1 each."""
    n_kept, first, second = 0, 0.0, 0.0
    for p in range(len(hits)):
        if not (s.drop and visits[p].skipped):
            reward = factor * visits[p].weight if s.weigh_reward else factor
            n_kept += 1
            first += reward * hits[p]
            second += reward * reward * hits[p]
    total = n_kept * s.n_samples
    squares = second - first * first / max(total, 1)
    return sqrt(max(squares, 0.0) / max(total - 1, 1))


def answer_advantages(
    s: Settings,
    visit: Any,
    label: int,
    minority: Sequence[Any],
    candidate_votes: Sequence[Any],
    hits: tuple[float, float],
    stds: tuple[float, float],
    advantages: Numbers,
) -> None:
    """Write the advantage of every answer, the sum of the majority and the minority stream.

    Args:
        s: settings.
        visit: the decision.
        label: answer that is trained on, -1 for none.
        minority: True for minority candidates; not the label.
        candidate_votes: responses per answer that they were chosen by.
        hits: samples on the label, and on minority candidates.
        stds: of `batch_std`, for the majority and the minority reward.
        advantages: output, per answer.
    """
    kept = 0.0 if visit.skipped else 1.0
    kept = kept * visit.weight if s.weigh_advantage else kept
    reward = visit.weight if s.weigh_reward else 1.0
    won, lost = standardised(s, hits[0], reward, stds[0])
    if s.bonus:
        _with_bonus(s, visit, label, minority, candidate_votes, hits[0], won, lost, advantages)
        for a in range(len(advantages)):
            # The minority stream is 0, which turns -0.0 into 0.0.
            advantages[a] = lessened(s, advantages[a] * kept) + 0.0
        return
    rival_won, rival_lost = standardised(s, hits[1], s.minority_reward * reward, stds[1])
    won, lost = (1 - visit.beta) * (won * kept), (1 - visit.beta) * (lost * kept)
    rival_won, rival_lost = visit.beta * (rival_won * kept), visit.beta * (rival_lost * kept)
    lost, rival_lost = lessened(s, lost), lessened(s, rival_lost)
    rival, other = lost + rival_won, lost + rival_lost
    for a in range(len(advantages)):
        advantages[a] = rival if minority[a] else other
    if label >= 0:
        advantages[label] = won + rival_lost


def _with_bonus(
    s: Settings,
    visit: Any,
    label: int,
    minority: Sequence[Any],
    candidate_votes: Sequence[Any],
    hits: float,
    won: float,
    lost: float,
    advantages: Numbers,
) -> None:
    """Write the advantages of the majority reward, with the release's bonus on candidates."""
    size = visit.beta * ((hits * won - (s.n_samples - hits) * lost) / s.n_samples)
    votes = 0
    for a in range(len(advantages)):
        votes += candidate_votes[a] if minority[a] else 0
    for a in range(len(advantages)):
        share = candidate_votes[a] / max(votes, 1) if minority[a] else 0.0
        advantages[a] = (won if a == label else lost) + size * share
