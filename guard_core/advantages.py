"""From a decision to the advantages and weights that a policy-gradient trainer consumes.

A reward here is one value for the samples that hit and 0 for the rest, so group mean and standard
deviation have closed forms in the number of hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from guard_core.config import GuardConfig, Numbers, Settings, settings
from guard_core.decision import Decision
from guard_core.votes import Array, as_array, as_ids, count_answers, widen

STD_FLOOR = 1e-6
"""Added to every standard deviation (docs/method.md, section 9)."""
UNPARSEABLE_BONUS = 0.05
"""Share of the mean bonus that unparseable samples get under `mix="bonus"` (release)."""

Scale = Literal["group", "batch", "none"]


class PolicyStreams(NamedTuple):
    """All that a trainer has to know of the guard.

    The loss of a token with ratio rho is
    `-weight * (min(rho * A1, clip(rho) * A1) + min(rho * A2, clip(rho) * A2))`, with A1 and A2 the
    two streams; `min(rho * A, clip(rho) * A)` is positively homogeneous in A, which is why the
    shares `1 - beta` and `beta` can sit inside them.
    """

    majority: Array
    """(..., P, K) advantages of the majority reward, times `1 - beta`."""
    minority: Array
    """(..., P, K) advantages of the minority reward, times `beta`."""
    weight: Array
    """(..., P) factor on the problem's loss."""
    drop: Array
    """(..., P) bool; the problem leaves the batch."""


def group_advantages(
    answers: Array, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Group-relative advantages of both rewards (docs/method.md, sections 5 and 9).

    Args:
        answers: (..., P, K) integer answer ids of the trained samples, -1 for unparseable.

    Returns:
        `majority` and `minority`, each (..., P, K), before mixing with `beta`; 0 for skipped
        problems. With `mix="bonus"` the bonus sits in `majority`, and `minority` is 0.

    Raises:
        ValueError: the answers are not those of the decision's problems.
    """
    n_answers = decision.minority.shape[-1]
    answers = _of_problems("answers", as_ids(answers, "answers"), decision)
    if answers.size and not (answers.min() >= -1 and answers.max() < n_answers):
        raise ValueError(f"answers: ids must lie in -1..{n_answers - 1}, those of the votes")
    samples = count_answers(answers, n_answers)
    streams = answer_advantages(samples, answers.shape[-1], decision, config)
    majority, minority = (np.take_along_axis(stream, answers, axis=-1) for stream in streams)
    return majority, minority


def _of_problems(name: str, values: Any, decision: Decision) -> Array:
    """Return the numbers as a NumPy array if they have a row for every problem of a decision."""
    array, shape = as_array(values, name), decision.label.shape
    if array.shape[:-1] != shape:
        told = f"shape {array.shape} must be (..., P, K) for decisions of shape {shape}"
        raise ValueError(f"{name}: {told}")
    return array


def answer_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """(..., P, A + 1) `group_advantages` of (..., P, A) trained samples, unparseable ones last."""
    majority = majority_advantages(samples, n_samples, decision, config)
    return majority, minority_advantages(samples, n_samples, decision, config)


def majority_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> Array:
    """(..., P, A + 1) first of `answer_advantages`."""
    s = settings(config, n_samples, n_samples)
    is_label = np.arange(decision.minority.shape[-1]) == decision.label[..., None]
    majority, hits, won, lost = _paid(s, samples, is_label, 1.0, decision)
    if s.mix_bonus:
        size = bonus_size(s, decision.beta, hits, won, lost)
        majority = majority + size[..., None] * bonus_shares(decision)
    return majority * kept_factor(decision, config)[..., None]


def minority_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> Array:
    """(..., P, A + 1) second of `answer_advantages`."""
    s = settings(config, n_samples, n_samples)
    if s.mix_bonus:
        return np.zeros((*decision.label.shape, decision.minority.shape[-1] + 1))
    minority, *_ = _paid(s, samples, decision.minority, s.minority_reward, decision)
    return minority * kept_factor(decision, config)[..., None]


def _paid(
    s: Settings, samples: Array, hit: Array, size: float, decision: Decision
) -> tuple[Array, Array, Array, Array]:
    """(..., P, A + 1) advantages where answers that hit get a reward of this size.

    The unparseable answer in the last column never does. Behind them, (..., P) each, are the hits,
    and the advantages of a sample with and without the reward.
    """
    reward = size * decision.weight if s.weight_on_reward else np.full_like(decision.weight, size)
    hits = np.where(hit, widen(samples, hit.shape[-1]), 0).sum(axis=-1).astype(np.float64)
    std = None
    if s.advantage_scale_batch:
        kept = ~decision.skip if s.skip_by_drop else None
        std = _batch_std(reward * hits, reward * reward * hits, s.n_samples, kept)
    won, lost = standardised(s, hits, reward, std)
    rewarded = widen(hit, hit.shape[-1] + 1)
    return np.where(rewarded, won[..., None], lost[..., None]), hits, won, lost


def kept_factor(decision: Decision, config: GuardConfig) -> Array:
    """Return the factor on the advantages of a problem, (..., P); 0 where it is skipped."""
    kept = (~decision.skip).astype(np.float64)
    return kept * decision.weight if config.advantages.weight_on == "advantage" else kept


def policy_streams(
    majority: Array, minority: Array, decision: Decision, config: GuardConfig
) -> PolicyStreams:
    """Fold `beta` into streams, (..., P, K) or (..., P, A + 1); name what leaves the batch."""
    how, majority = config.advantages, _of_problems("majority", majority, decision)
    minority = as_array(minority, "minority")
    if config.mps is None or config.mps.mix == "loss":
        majority = (1 - decision.beta)[..., None] * majority
        minority = decision.beta[..., None] * minority
    majority, minority = (negatives_scaled(a, config) for a in (majority, minority))
    weight = decision.weight if how.weight_on == "loss" else np.ones_like(decision.weight)
    dropped = decision.skip if how.skip_by == "drop" else np.zeros_like(decision.skip)
    return PolicyStreams(majority, minority, weight, dropped)


def standardised(s: Settings, hits: Any, reward: Any, std: Any) -> tuple[Any, Any]:
    """Return the advantages of the `hits` samples that get a reward, and of those that do not.

    Of one problem or of arrays; `std` is that of the batch, read for `advantage_scale="batch"`.
    """
    mean = reward * (hits / s.n_samples)
    if not (s.advantage_scale_group or s.advantage_scale_batch):
        return reward - mean, -mean
    if s.advantage_scale_group:
        pairs = max(s.n_samples * (s.n_samples - 1), 1)
        std = reward * np.sqrt(hits * (s.n_samples - hits) / pairs)
    std = std + STD_FLOOR
    return (reward - mean) / std, -mean / std


def unbiased_std(first: Any, second: Any, total: Any) -> Any:
    """Return the standard deviation of `total` numbers with this sum and this sum of squares."""
    squares = second - first * first / np.maximum(total, 1)
    return np.sqrt(np.maximum(squares, 0.0) / np.maximum(total - 1, 1))


def bonus_size(s: Settings, beta: Any, hits: Any, won: Any, lost: Any) -> Any:
    """Return the release's bonus on all candidates: beta times the mean |advantage|."""
    return beta * ((hits * won - (s.n_samples - hits) * lost) / s.n_samples)


def negatives_scaled(advantages: Array, config: GuardConfig) -> Array:
    """Advantages whose negative ones are multiplied by `negative_scale`."""
    scale = config.advantages.negative_scale
    return advantages if scale == 1 else np.where(advantages < 0, scale * advantages, advantages)


def scale_negatives(s: Settings, advantage: float) -> float:
    """Return the advantage, a negative one times `negative_scale`."""
    return s.negative_scale * advantage if advantage < 0 else advantage


def batch_std(s: Settings, hits: Sequence[float], factor: float, visits: Any) -> float:
    """Return the standard deviation of a batch's rewards, `factor` times the weight or 1 each."""
    n_kept, first, second = 0, 0.0, 0.0
    for p in range(len(hits)):
        if not (s.skip_by_drop and visits[p].skipped):
            reward = factor * visits[p].weight if s.weight_on_reward else factor
            n_kept += 1
            first += reward * hits[p]
            second += reward * reward * hits[p]
    return unbiased_std(first, second, n_kept * s.n_samples)


def net_advantages(
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
        label: answer that is trained on, -1 for none; no minority candidate.
        hits: samples on the label, and on minority candidates.
        stds: of `batch_std`, for the majority and the minority reward.
    """
    kept = 0.0 if visit.skipped else 1.0
    kept = kept * visit.weight if s.weight_on_advantage else kept
    reward = visit.weight if s.weight_on_reward else 1.0
    won, lost = standardised(s, hits[0], reward, stds[0])
    if s.mix_bonus:
        size, votes = bonus_size(s, visit.beta, hits[0], won, lost), 0
        for a in range(len(advantages)):
            votes += candidate_votes[a] if minority[a] else 0
        for a in range(len(advantages)):
            share = candidate_votes[a] / max(votes, 1) if minority[a] else 0.0
            advantage = ((won if a == label else lost) + size * share) * kept
            # The minority stream is 0, which turns -0.0 into 0.0.
            advantages[a] = scale_negatives(s, advantage) + 0.0
        return
    rival_won, rival_lost = standardised(s, hits[1], s.minority_reward * reward, stds[1])
    won, lost = (1 - visit.beta) * (won * kept), (1 - visit.beta) * (lost * kept)
    rival_won, rival_lost = visit.beta * (rival_won * kept), visit.beta * (rival_lost * kept)
    lost, rival_lost = scale_negatives(s, lost), scale_negatives(s, rival_lost)
    rival, other = lost + rival_won, lost + rival_lost
    for a in range(len(advantages)):
        advantages[a] = rival if minority[a] else other
    if label >= 0:
        advantages[label] = won + rival_lost


def standardise(rewards: Array, scale: Scale = "group", *, kept: Array | None = None) -> Array:
    """Subtract each group's mean reward and divide by an unbiased standard deviation.

    Args:
        rewards: (..., P, K) floats, one group of responses per row; `group` and `none` also take
            (..., K).
        scale: divide by the group's standard deviation, by that of all responses of the batch,
            each plus `STD_FLOOR`, or not at all.
        kept: (..., P) bool; the groups that enter the batch's standard deviation; all if left out.

    Returns:
        Advantages in the shape of `rewards`; exactly 0 in a group whose rewards are all equal.
    """
    if scale not in get_args(Scale):
        raise ValueError(f"scale = {scale!r}: must be one of {', '.join(get_args(Scale))}")
    rewards = as_array(rewards, "rewards").astype(np.float64, copy=False)
    mean = rewards.mean(axis=-1, keepdims=True)
    differ = rewards.max(axis=-1, keepdims=True) != rewards.min(axis=-1, keepdims=True)
    centred = np.where(differ, rewards - mean, 0.0)
    if scale == "none":
        return centred
    if scale == "batch":
        # Moments around a value near the batch's mean lose no digits where the mean is large.
        near = rewards - np.mean(mean, axis=-2, keepdims=True)
        first, second = near.sum(axis=-1), (near * near).sum(axis=-1)
        std = _batch_std(first, second, rewards.shape[-1], kept)
    else:
        squares = (centred * centred).sum(axis=-1)
        std = np.sqrt(squares / max(rewards.shape[-1] - 1, 1))
    return centred / (std[..., None] + STD_FLOOR)


def _batch_std(first: Array, second: Array, size: int, kept: Array | None) -> Array:
    """(..., 1) standard deviation of a batch's rewards from their groups' sums, squares, size."""
    factor = np.ones(first.shape) if kept is None else as_array(kept, "kept").astype(np.float64)
    total = np.sum(factor * size, axis=-1, keepdims=True)
    # From left to right, as `batch_std` adds up.
    first, second = (np.cumsum(factor * sums, axis=-1)[..., -1:] for sums in (first, second))
    return unbiased_std(first, second, total)


def bonus_shares(decision: Decision) -> Array:
    """(..., P, A + 1) shares of the release's bonus, `mix="bonus"` (docs/method.md, section 8).

    A candidate's share is that of its votes among all candidates'; unparseable samples get
    `UNPARSEABLE_BONUS` of the mean share.
    """
    votes = np.where(decision.minority, decision.candidate_votes, 0)
    share = votes / np.maximum(votes.sum(axis=-1, keepdims=True), 1)
    n_candidates = decision.minority.sum(axis=-1, keepdims=True)
    mean_share = (n_candidates > 0) / np.maximum(n_candidates, 1)
    return np.concatenate([share, UNPARSEABLE_BONUS * mean_share], axis=-1)
