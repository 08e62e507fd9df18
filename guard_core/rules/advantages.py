"""From a rule's rewards to the advantage streams of `guard_core.advantages`.

A rule that pays 1 to the label and 0 to the rest goes through the same lines as plain TTRL, so its
numbers are equal to the bit. Other rewards are standardised here, within the K trained responses
of a problem, or over the batch; there a problem that the rule leaves out still counts.
"""

from __future__ import annotations

from typing import Any

from guard_core.advantages import STD_FLOOR, PolicyStreams, answer_advantages, bonus_shares
from guard_core.arrays import Array, namespace, square_root
from guard_core.config import GuardConfig
from guard_core.guard import Decision
from guard_core.rules.rule import Rule
from guard_core.rules.seen import Seen, own


def response_streams(
    rule: Rule, seen: Seen, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Advantages of both streams per trained response, as `group_advantages` gives them.

    Args:
        rule: pays the majority stream; the minority stream is the guard's.
        seen: of the batch, with `answers`.
        decision: of the same problems.
        config: of the guard.

    Returns:
        `majority` and `minority`, each (..., P, K), before mixing with `beta`.

    Raises:
        ValueError: something that the rule needs was not observed.
    """
    answers = seen.of("answers")[..., : seen.votes.n_samples]
    if rule.pays != "response":
        streams = answer_streams(rule, seen, decision, config)
        majority, minority = (own(stream, answers) for stream in streams)
        return majority, minority
    label, xp = decision.label, namespace(answers)
    rewards = _weighted(rule.pay(seen, label), decision, config)
    count = xp.ones_like(rewards)
    majority = _standardise(rewards, count, seen, decision, config)
    _, minority = answer_advantages(seen.votes.samples, seen.votes.n_samples, decision, config)
    minority = own(minority, answers)
    direct = rule.is_direct(seen, label)
    if direct is not None:
        majority = xp.where(direct[..., None], rewards, majority)
    kept = _kept(decision, config)
    if config.mix == "bonus":
        size = xp.mean(xp.abs(majority), axis=-1)
        majority = majority + (decision.beta * size)[..., None] * own(
            bonus_shares(decision), answers
        )
    return majority * kept[..., None], minority


def answer_streams(
    rule: Rule, seen: Seen, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """The same per answer, for rules whose rewards depend on the answer alone.

    Args:
        rule: pays by label or by answer.
        seen: of the batch; `answers` only where the rule reads them.
        decision: of the same problems.
        config: of the guard.

    Returns:
        `majority` and `minority`, each (..., P, A + 1); the last column is the unparseable answer.

    Raises:
        ValueError: the rule pays single responses.
    """
    seen = seen.wide(decision.minority.shape[-1])
    votes, label = seen.votes, decision.label
    if rule.pays == "label":
        return answer_advantages(votes.samples, votes.n_samples, decision, config)
    if rule.pays == "response":
        raise ValueError(f"rule {rule.name} pays single responses; use response_streams")
    xp = namespace(votes.samples)
    parsed = xp.sum(votes.samples, axis=-1, keepdims=True)
    none = votes.n_samples - parsed
    count = xp.astype(xp.concat([votes.samples, none], axis=-1), seen.real)
    rewards = _weighted(rule.pay(seen, label), decision, config)
    majority = _standardise(rewards, count, seen, decision, config)
    direct = rule.is_direct(seen, label)
    if direct is not None:
        majority = xp.where(direct[..., None], rewards, majority)
    if config.mix == "bonus":
        size = xp.sum(count * xp.abs(majority), axis=-1) / votes.n_samples
        majority = majority + (decision.beta * size)[..., None] * bonus_shares(decision)
    _, minority = answer_advantages(votes.samples, votes.n_samples, decision, config)
    return majority * _kept(decision, config)[..., None], minority


def weighed(rule: Rule, seen: Seen, label: Array, streams: PolicyStreams) -> PolicyStreams:
    """The streams with the rule's weights; a problem of weight 0 leaves the batch.

    Args:
        rule: of the run.
        seen: of the batch.
        label: (..., P) of the decision.
        streams: from `policy_streams`.
    """
    weight = rule.weigh(seen, label)
    return streams._replace(weight=streams.weight * weight, drop=streams.drop | (weight == 0))


def _weighted(rewards: Array, decision: Decision, config: GuardConfig) -> Array:
    return rewards * decision.weight[..., None] if config.weight_on == "reward" else rewards


def _kept(decision: Decision, config: GuardConfig) -> Array:
    xp = namespace(decision.weight)
    kept = xp.astype(~decision.skip, decision.weight.dtype)
    return kept * decision.weight if config.weight_on == "advantage" else kept


def _standardise(
    rewards: Array, count: Array, seen: Seen, decision: Decision, config: GuardConfig
) -> Array:
    """Rewards minus their mean over an unbiased standard deviation; `count` responses have each.

    Equal rewards give 0 and no rounding error, for such a group is recognised by that.
    """
    xp = namespace(rewards)
    K = seen.votes.n_samples
    mean = xp.sum(count * rewards, axis=-1, keepdims=True) / K
    centred = xp.where(_differ(rewards, count), rewards - mean, xp.zeros_like(rewards))
    if config.advantage_scale == "none":
        return centred
    if config.advantage_scale == "group":
        squares = xp.sum(count * centred * centred, axis=-1, keepdims=True)
        return centred / (square_root(squares / max(K - 1, 1)) + STD_FLOOR)
    return centred / (_batch_std(xp, rewards, count, K, decision, config) + STD_FLOOR)


def _differ(rewards: Array, count: Array) -> Array:
    """(..., P, 1) bool; two trained responses of the problem have different rewards."""
    xp = namespace(rewards)
    high = xp.max(xp.where(count > 0, rewards, -xp.inf), axis=-1, keepdims=True)
    low = xp.min(xp.where(count > 0, rewards, xp.inf), axis=-1, keepdims=True)
    return high > low


def _batch_std(
    xp: Any, rewards: Array, count: Array, K: int, decision: Decision, config: GuardConfig
) -> Array:
    """(..., 1, 1) unbiased standard deviation of the rewards of all samples in the batch."""
    kept = xp.ones_like(rewards[..., :1])
    if config.skip_by == "drop":
        kept = xp.astype(~decision.skip, rewards.dtype)[..., None]
    held = kept * count
    total = xp.sum(kept * K, axis=(-2, -1), keepdims=True)
    mean = xp.sum(held * rewards, axis=(-2, -1), keepdims=True) / xp.clip(total, min=1.0)
    squares = xp.sum(held * (rewards - mean) ** 2, axis=(-2, -1), keepdims=True)
    return square_root(squares / xp.clip(total - 1, min=1.0))
