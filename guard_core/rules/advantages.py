"""From a rule's rewards to the advantage streams of `guard_core.advantages`.

A rule that pays 1 to the label and 0 to the rest goes through the same lines as plain TTRL, so its
numbers are equal to the bit. Other rewards are standardised within the K trained responses of a
problem, or over the batch; there a problem that the rule leaves out still counts.
"""

from __future__ import annotations

from guard_core.advantages import PolicyStreams, answer_advantages, bonus_shares, standardise
from guard_core.arrays import Array, namespace
from guard_core.config import GuardConfig
from guard_core.guard import Decision
from guard_core.rules.observations import Observations, own
from guard_core.rules.rule import Rule


def response_streams(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Advantages of both streams per trained response, as `group_advantages` gives them.

    Args:
        rule: pays the majority stream; the minority stream is the guard's.
        obs: of the batch, with `answers`.
        decision: of the same problems.
        config: of the guard.

    Returns:
        `majority` and `minority`, each (..., P, K), before mixing with `beta`.

    Raises:
        ValueError: something that the rule needs was not observed.
    """
    answers = obs.of("answers")[..., : obs.votes.n_samples]
    if rule.pays != "response":
        streams = answer_streams(rule, obs, decision, config)
        majority, minority = (own(stream, answers) for stream in streams)
        return majority, minority
    shares = own(bonus_shares(decision), answers) if config.mix == "bonus" else None
    count = namespace(answers).ones_like(answers)
    majority = _majority(rule, obs, count, shares, decision, config)
    _, minority = answer_advantages(obs.votes.samples, obs.votes.n_samples, decision, config)
    return majority, own(minority, answers)


def answer_streams(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """The same per answer, for rules whose rewards depend on the answer alone.

    Args:
        rule: pays by label or by answer.
        obs: of the batch; `answers` only where the rule reads them.
        decision: of the same problems.
        config: of the guard.

    Returns:
        `majority` and `minority`, each (..., P, A + 1); the last column is the unparseable answer.

    Raises:
        ValueError: the rule pays single responses.
    """
    obs = obs.wide(decision.minority.shape[-1])
    votes = obs.votes
    if rule.pays == "label":
        return answer_advantages(votes.samples, votes.n_samples, decision, config)
    if rule.pays == "response":
        raise ValueError(f"rule {rule.name} pays single responses; use response_streams")
    xp = namespace(votes.samples)
    parsed = xp.sum(votes.samples, axis=-1, keepdims=True)
    count = xp.concat([votes.samples, votes.n_samples - parsed], axis=-1)
    shares = bonus_shares(decision) if config.mix == "bonus" else None
    majority = _majority(rule, obs, count, shares, decision, config)
    _, minority = answer_advantages(votes.samples, votes.n_samples, decision, config)
    return majority, minority


def weighed(rule: Rule, obs: Observations, label: Array, streams: PolicyStreams) -> PolicyStreams:
    """The streams with the rule's weights; a problem of weight 0 leaves the batch.

    Args:
        rule: of the run.
        obs: of the batch.
        label: (..., P) of the decision.
        streams: from `policy_streams`.
    """
    weight = rule.weigh(obs, label)
    return streams._replace(weight=streams.weight * weight, drop=streams.drop | (weight == 0))


def _majority(
    rule: Rule,
    obs: Observations,
    count: Array,
    shares: Array | None,
    decision: Decision,
    config: GuardConfig,
) -> Array:
    """The majority stream.

    Args:
        rule: pays it.
        obs: of the batch.
        count: (..., P, M) trained responses with each of the M rewards.
        shares: (..., P, M) of the release's bonus; None without one.
        decision: of the same problems.
        config: of the guard.
    """
    xp = namespace(decision.weight)
    rewards = rule.pay(obs, decision.label)
    if config.weight_on == "reward":
        rewards = rewards * decision.weight[..., None]
    kept = ~decision.skip if config.skip_by == "drop" else None
    majority = standardise(rewards, config.advantage_scale, count=count, kept=kept)
    direct = rule.is_direct(obs, decision.label)
    if direct is not None:
        majority = xp.where(direct[..., None], rewards, majority)
    if shares is not None:
        count = xp.astype(count, majority.dtype)
        size = xp.sum(count * xp.abs(majority), axis=-1) / obs.votes.n_samples
        majority = majority + (decision.beta * size)[..., None] * shares
    factor = xp.astype(~decision.skip, decision.weight.dtype)
    factor = factor * decision.weight if config.weight_on == "advantage" else factor
    return majority * factor[..., None]
