"""SCOPE's subgroups: what one size pays, and which one, between certain and diverse labels."""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import device

from guard_core.arrays import Array, namespace
from guard_core.rules.seen import Seen


class Cut(NamedTuple):
    """The responses cut into subgroups of one size."""

    rewards: Array
    """(..., P, V) 1 where a response's answer is its subgroup's label."""
    mean_reward: Array
    """(...,) over all responses of the batch."""
    diversity: Array
    """(...,) mean number of distinct labels of a problem."""


def subgroup_sizes(n_votes: int) -> list[int]:
    """Powers of two that divide the number of responses."""
    return [2**n for n in range(n_votes.bit_length()) if n_votes % 2**n == 0]


def cut_by(seen: Seen, labels: Array, size: int, count_none: bool) -> Cut:
    """Reward every response against its subgroup's label.

    Args:
        seen: of the batch, with `answers`.
        labels: (..., P, S) of the subgroups, -2 for none.
        size: of a subgroup; S times it is V.
        count_none: whether "no label" is one of the distinct labels.
    """
    answers = seen.of("answers")
    xp = namespace(answers)
    member = xp.arange(seen.votes.n_votes, device=device(answers)) // size
    of_member = xp.take(labels, xp.astype(member, xp.int64), axis=-1)
    rewards = xp.astype((answers == of_member) & (answers >= 0), seen.real)
    ordered = xp.sort(labels, axis=-1, stable=False)
    new = ordered[..., 1:] != ordered[..., :-1]
    distinct = 1 + xp.sum(xp.astype(new, seen.real), axis=-1)
    if not count_none:
        distinct = distinct - xp.astype(ordered[..., 0] < 0, seen.real)
    return Cut(rewards, xp.mean(rewards, axis=(-2, -1)), xp.mean(distinct, axis=-1))


def choose_cut(cuts: list[Cut], balance: float) -> Array:
    """(..., P, V) rewards of the best cut, the same one for the whole batch.

    Args:
        cuts: one per size, the smallest first.
        balance: weight of the mean reward beside the diversity.
    """
    xp = namespace(cuts[0].mean_reward)
    R = xp.stack([cut.mean_reward for cut in cuts], axis=-1)
    D = xp.stack([cut.diversity for cut in cuts], axis=-1)
    front = _front(R, D)
    away = balance * (1 - _scaled(R, front)) ** 2 + (1 - balance) * (1 - _scaled(D, front)) ** 2
    # No distance exceeds 1, so 2 leaves out what others beat.
    chosen = xp.argmin(xp.where(front, away, xp.full_like(away, 2.0)), axis=-1)
    rewards = cuts[0].rewards
    for place, cut in enumerate(cuts):
        rewards = xp.where((chosen == place)[..., None, None], cut.rewards, rewards)
    return rewards


def _front(R: Array, D: Array) -> Array:
    """(..., S) bool; the cuts that no other beats in one of both and equals in the other."""
    xp = namespace(R)
    more_R, more_D = R[..., None, :] > R[..., None], D[..., None, :] > D[..., None]
    not_less = (R[..., None, :] >= R[..., None]) & (D[..., None, :] >= D[..., None])
    return ~xp.any(not_less & (more_R | more_D), axis=-1)


def _scaled(values: Array, front: Array) -> Array:
    """To [0, 1] over the front; 1 where all of it is equal, which then decides nothing."""
    xp = namespace(values)
    high = xp.max(values, axis=-1, keepdims=True)
    low = xp.min(xp.where(front, values, high), axis=-1, keepdims=True)
    width, ones = high - low, xp.ones_like(values)
    return xp.where(width > 0, (values - low) / xp.where(width > 0, width, ones), ones)
