"""From a rule's rewards to the advantage streams of `guard_core.advantages`.

A rule that pays 1 to the label and 0 to the rest goes through the same lines as plain TTRL, so its
numbers are equal to the bit. Other rewards are standardised within the K trained responses of a
problem, or over the batch; there a problem that the rule leaves out still counts.
"""

from __future__ import annotations

from guard_core.advantages import (
    PolicyStreams,
    bonus_shares,
    kept_factor,
    majority_advantages,
    minority_advantages,
    standardise,
)
from guard_core.arrays import Array, namespace
from guard_core.config import GuardConfig
from guard_core.decision import Decision
from guard_core.rules.rule import Observations, Rule, per_response
from guard_core.votes import Votes


def response_streams(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Return the advantages of both streams per trained response, as `group_advantages` does.

    Args:
        rule: pays the majority stream; the minority stream is the guard's.
        obs: of the batch, with `answers`.

    Returns:
        `majority` and `minority`, each (..., P, K), before mixing with `beta`.

    Raises:
        ValueError: something that the rule needs was not observed.
    """
    answers = obs.of("answers")[..., : obs.votes.n_samples]
    if rule.pays != "response":
        majority, minority = answer_streams(rule, obs, decision, config)
        return per_response(majority, answers), per_response(minority, answers)
    votes, majority = obs.votes, rule_advantages(rule, obs, decision, config)
    minority = minority_advantages(votes.samples, votes.n_samples, decision, config)
    return majority, per_response(minority, answers)


def answer_streams(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Return the same per answer, for rules whose rewards depend on the answer alone.

    Args:
        rule: pays by label or by answer.
        obs: of the batch; `answers` only where the rule reads them.

    Returns:
        `majority` and `minority`, each (..., P, A + 1); the last column is the unparseable answer.

    Raises:
        ValueError: the rule pays single responses.
    """
    if rule.pays == "response":
        raise ValueError(f"rule {rule.name} pays single responses; use response_streams")
    votes, majority = obs.votes, rule_advantages(rule, obs, decision, config)
    return majority, minority_advantages(votes.samples, votes.n_samples, decision, config)


def rule_advantages(
    rule: Rule,
    obs: Observations,
    decision: Decision,
    config: GuardConfig,
    rewards: Array | None = None,
) -> Array:
    """Return the majority stream alone, before mixing with `beta`.

    Args:
        rewards: those of `rule.pay`, where they were computed elsewhere.

    Returns:
        (..., P, K) where the rule pays responses, else (..., P, A + 1).
    """
    obs = obs.wide(decision.minority.shape[-1])
    votes, xp = obs.votes, namespace(decision.weight)
    if rule.pays == "label":
        return majority_advantages(votes.samples, votes.n_samples, decision, config)
    rewards = rule.pay(obs, decision.label) if rewards is None else rewards
    if config.weight_on == "reward":
        rewards = rewards * decision.weight[..., None]
    count = None if rule.pays == "response" else _count(votes)
    kept = ~decision.skip if config.skip_by == "drop" else None
    majority = standardise(rewards, config.advantage_scale, count=count, kept=kept)
    direct = rule.is_direct(obs, decision.label)
    if direct is not None:
        majority = xp.where(direct[..., None], rewards, majority)
    if config.mix == "bonus":
        majority = majority + _bonus(majority, count, obs, decision)
    return majority * kept_factor(decision, config)[..., None]


def _count(votes: Votes) -> Array:
    """(..., P, A + 1) trained responses per answer, the unparseable ones last."""
    xp = namespace(votes.samples)
    parsed = xp.sum(votes.samples, axis=-1, keepdims=True)
    return xp.concat([votes.samples, votes.n_samples - parsed], axis=-1)


def _bonus(majority: Array, count: Array | None, obs: Observations, decision: Decision) -> Array:
    """The release's bonus on candidates, in units of the mean |advantage|."""
    xp, shares = namespace(majority), bonus_shares(decision)
    size = xp.abs(majority)
    if count is None:
        shares = per_response(shares, obs.of("answers")[..., : obs.votes.n_samples])
    else:
        size = xp.astype(count, majority.dtype) * size
    mean = xp.sum(size, axis=-1) / obs.votes.n_samples
    return (decision.beta * mean)[..., None] * shares


def weighed(rule: Rule, obs: Observations, label: Array, streams: PolicyStreams) -> PolicyStreams:
    """The streams with the rule's weights; a problem of weight 0 leaves the batch.

    Args:
        streams: from `policy_streams`.
    """
    weight = rule.weigh(obs, label)
    return streams._replace(weight=streams.weight * weight, drop=streams.drop | (weight == 0))
