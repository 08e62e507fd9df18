"""From a decision to the advantages and weights that a policy-gradient trainer consumes.

A reward here is one value for the samples that hit and 0 for the rest, so group mean and standard
deviation have closed forms in the number of hits: exact, alike to the last bit in every array
library, and the same for the trainer (per response) and the simulator (per answer).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from array_api_compat import device

from guard_core.arrays import Array, divide, namespace, ordered_sum, square_root, widen
from guard_core.config import GuardConfig
from guard_core.decision import Decision
from guard_core.votes import count_answers

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
        config: `advantage_scale`, `weight_on`, `mix`, `minority_reward` and `skip_by` are read.

    Returns:
        `majority` and `minority`, each (..., P, K), before mixing with `beta`; 0 for skipped
        problems. With `mix="bonus"` the bonus sits in `majority`, and `minority` is 0.
    """
    n_answers = decision.minority.shape[-1]
    streams = answer_advantages(
        count_answers(answers, n_answers), answers.shape[-1], decision, config
    )
    xp = namespace(decision.weight)
    index = xp.astype(xp.where(answers < 0, n_answers, answers), xp.int64)
    majority, minority = (xp.take_along_axis(stream, index, axis=-1) for stream in streams)
    return majority, minority


def answer_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """Group-relative advantages per answer id instead of per response.

    Args:
        samples: (..., P, A) integers; trained responses per answer id.
        n_samples: K, unparseable ones included.

    Returns:
        `majority` and `minority`, each (..., P, A + 1); the last column is the unparseable answer.
    """
    majority = majority_advantages(samples, n_samples, decision, config)
    return majority, minority_advantages(samples, n_samples, decision, config)


def majority_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> Array:
    """Return the `majority` of `answer_advantages`."""
    xp = namespace(decision.weight)
    samples = widen(samples, decision.minority.shape[-1])
    ids = xp.arange(samples.shape[-1], dtype=decision.label.dtype, device=device(samples))
    is_label = ids == decision.label[..., None]
    reward = decision.weight if config.weight_on == "reward" else xp.ones_like(decision.weight)
    pay = _standardise(samples, is_label, n_samples, reward, decision, config)
    majority = pay.per_answer(is_label)
    if config.mix == "bonus":
        majority = majority + _bonus(pay, n_samples, decision)
    return majority * kept_factor(decision, config)[..., None]


def minority_advantages(
    samples: Array, n_samples: int, decision: Decision, config: GuardConfig
) -> Array:
    """Return the `minority` of `answer_advantages`."""
    xp = namespace(decision.weight)
    samples = widen(samples, decision.minority.shape[-1])
    if config.mix == "bonus":
        shape = (*samples.shape[:-1], samples.shape[-1] + 1)
        return xp.zeros(shape, dtype=decision.weight.dtype, device=device(samples))
    reward = decision.weight if config.weight_on == "reward" else xp.ones_like(decision.weight)
    reward = config.minority_reward * reward
    pay = _standardise(samples, decision.minority, n_samples, reward, decision, config)
    return pay.per_answer(decision.minority) * kept_factor(decision, config)[..., None]


def kept_factor(decision: Decision, config: GuardConfig) -> Array:
    """Return the factor on the advantages of a problem, (..., P); 0 where it is skipped."""
    kept = namespace(decision.weight).astype(~decision.skip, decision.weight.dtype)
    return kept * decision.weight if config.weight_on == "advantage" else kept


def policy_streams(
    majority: Array, minority: Array, decision: Decision, config: GuardConfig
) -> PolicyStreams:
    """Fold `beta` into the two streams of `group_advantages` and name what leaves the batch.

    Args:
        majority: (..., P, K) or, per answer, (..., P, A + 1).
        config: `mix`, `negative_scale`, `weight_on` and `skip_by` are read.
    """
    xp = namespace(decision.weight)
    if config.mix == "loss":
        majority = (1 - decision.beta)[..., None] * majority
        minority = decision.beta[..., None] * minority
    majority, minority = (
        scale_negatives(stream, config.negative_scale) for stream in (majority, minority)
    )
    on_loss = config.weight_on == "loss"
    weight = decision.weight if on_loss else xp.ones_like(decision.weight)
    dropped = decision.skip if config.skip_by == "drop" else xp.zeros_like(decision.skip)
    return PolicyStreams(majority, minority, weight, dropped)


def scale_negatives(advantages: Array, scale: float) -> Array:
    """Return the advantages, negative ones times `scale`."""
    xp = namespace(advantages)
    return advantages if scale == 1 else xp.where(advantages < 0, scale * advantages, advantages)


class _Pay(NamedTuple):
    """Value of one reward after standardisation."""

    hits: Array
    """(..., P) rewarded samples."""
    won: Array
    """(..., P) advantage of a rewarded sample."""
    lost: Array
    """(..., P) advantage of any other sample."""

    def per_answer(self, hit: Array) -> Array:
        """(..., P, A + 1); the unparseable answer in the last column is never rewarded."""
        xp = namespace(self.won)
        lost = self.lost[..., None]
        return xp.concat([xp.where(hit, self.won[..., None], lost), lost], axis=-1)


def _standardise(
    samples: Array,
    hit: Array,
    n_samples: int,
    reward: Array,
    decision: Decision,
    config: GuardConfig,
) -> _Pay:
    """Standardise `reward` (..., P), paid to the samples whose answer is in `hit` (..., P, A)."""
    xp = namespace(reward)
    counted = xp.where(hit, samples, xp.zeros_like(samples))
    hits = xp.astype(xp.sum(counted, axis=-1), reward.dtype)
    mean = reward * divide(hits, n_samples)
    if config.advantage_scale == "none":
        return _Pay(hits, reward - mean, -mean)
    if config.advantage_scale == "group":
        pairs = max(n_samples * (n_samples - 1), 1)
        std = reward * square_root(divide(hits * (n_samples - hits), pairs))
    else:
        size = xp.full_like(hits, n_samples)
        kept = ~decision.skip if config.skip_by == "drop" else None
        std = _batch_std(reward * hits, reward * reward * hits, size, kept)
    return _Pay(hits, _scaled(reward - mean, std), _scaled(-mean, std))


def standardise(
    rewards: Array,
    scale: Scale = "group",
    *,
    count: Array | None = None,
    kept: Array | None = None,
) -> Array:
    """Subtract each group's mean reward and divide by an unbiased standard deviation.

    Args:
        rewards: (..., P, K) floats, one group of responses per row; `group` and `none` also take
            (..., K).
        scale: divide by the group's standard deviation, by that of all responses of the batch,
            each plus `STD_FLOOR`, or not at all.
        count: (..., P, K) responses that share each reward; one each if left out.
        kept: (..., P) bool; the groups that enter the batch's standard deviation; all if left out.

    Returns:
        Advantages in the shape of `rewards`; exactly 0 in a group whose rewards are all equal.
    """
    xp = namespace(rewards)
    if count is None:
        size = xp.full_like(rewards[..., 0], rewards.shape[-1])
    else:
        count = xp.astype(count, rewards.dtype)
        size = xp.sum(count, axis=-1)
    mean = (_total(rewards, count) / size)[..., None]
    centred = xp.where(_differ(rewards, count), rewards - mean, xp.zeros_like(rewards))
    if scale == "none":
        return centred
    if scale == "batch":
        # Moments around a value near the batch's mean lose no digits where the mean is large.
        near = rewards - xp.mean(mean, axis=-2, keepdims=True)
        first, second = _total(near, count), _total(near * near, count)
        return _scaled(centred, _batch_std(first, second, size, kept)[..., None])
    squares = _total(centred * centred, count)
    return _scaled(centred, square_root(squares / xp.clip(size - 1, min=1.0))[..., None])


def _total(values: Array, count: Array | None) -> Array:
    """Sum over the last axis of values that `count` responses have each."""
    return namespace(values).sum(values if count is None else count * values, axis=-1)


def _scaled(centred: Array, std: Array) -> Array:
    return centred / (std + STD_FLOOR)


def _differ(rewards: Array, count: Array | None) -> Array:
    """(..., 1) bool; two responses of the group have different rewards."""
    xp = namespace(rewards)
    high = low = rewards
    if count is not None:
        given = count > 0
        high, low = (xp.where(given, rewards, xp.full_like(rewards, x)) for x in (-xp.inf, xp.inf))
    return xp.max(high, axis=-1, keepdims=True) > xp.min(low, axis=-1, keepdims=True)


def _batch_std(first: Array, second: Array, size: Array, kept: Array | None) -> Array:
    """(..., 1) unbiased standard deviation of the rewards of all responses of the batch.

    Args:
        first: (..., P) sum of each group's rewards.
        second: (..., P) sum of their squares.
        size: (..., P) responses per group.
        kept: (..., P) bool; the groups that count; all if None.
    """
    xp = namespace(first)
    factor = xp.ones_like(first) if kept is None else xp.astype(kept, first.dtype)
    total = xp.sum(factor * size, axis=-1, keepdims=True)
    first, second = (ordered_sum(factor * moment)[..., None] for moment in (first, second))
    squares = second - first * first / xp.clip(total, min=1.0)
    return square_root(xp.clip(squares, min=0.0) / xp.clip(total - 1, min=1.0))


def bonus_shares(decision: Decision) -> Array:
    """(..., P, A + 1) shares of the release's bonus, `mix="bonus"` (docs/method.md, section 8).

    A candidate's share is that of its votes among all candidates'; unparseable samples get
    `UNPARSEABLE_BONUS` of the mean share.
    """
    xp = namespace(decision.weight)
    real = decision.weight.dtype
    votes = xp.astype(decision.candidate_votes, real) * xp.astype(decision.minority, real)
    share = votes / xp.clip(xp.sum(votes, axis=-1, keepdims=True), min=1.0)
    n_candidates = xp.sum(xp.astype(decision.minority, real), axis=-1, keepdims=True)
    mean_share = xp.astype(n_candidates > 0, real) / xp.clip(n_candidates, min=1.0)
    return xp.concat([share, UNPARSEABLE_BONUS * mean_share], axis=-1)


def _bonus(pay: _Pay, n_samples: int, decision: Decision) -> Array:
    """(..., P, A + 1) the release's bonus on candidates, in units of the mean |advantage|."""
    mean_size = divide(pay.hits * pay.won - (n_samples - pay.hits) * pay.lost, n_samples)
    return (decision.beta * mean_size)[..., None] * bonus_shares(decision)
