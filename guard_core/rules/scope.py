"""SCOPE: labels of many subgroups, weighted by the confidence of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from array_api_compat import device

from guard_core.arrays import Array, floor_share, namespace, sum_by_id, widen
from guard_core.checks import Share
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Need, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Rule):
    """Every subgroup of responses is rewarded against a label of its own.

    "Beyond Majority Voting: Towards Fine-grained and More Reliable Reward Signal for Test-Time
    Reinforcement Learning"; read in the authors' code (`grouputils.py`, `ray_trainer.py`; 64
    responses, all trained, temperature .6 or 1). For a size g of {1, 2, 4, .., V} the V responses
    are cut in order into V / g subgroups. Each draws `subset` of the V responses without
    replacement, its label is the argmax over a of sum_i conf_i [a_i = a], the smallest id of
    equals, and its members are rewarded against that label. One g is chosen for the batch: of the
    sizes that no other beats in mean reward R and mean number of distinct labels D, both scaled to
    [0, 1] over these, the one with the least sqrt(l (1 - R)^2 + (1 - l) (1 - D)^2), the smallest of
    equals. Sizes that do not divide V are left out. Where labels remember, what was remembered
    counts for `subset` of itself.

    As released, the confidence is the mean negative log-prob of the sampled tokens, which is high
    for unsure responses, and within a subset the j-th parseable answer meets the confidence of the
    j-th response, so that unparseable ones shift them; `release` does both, and counts "no label"
    among the distinct labels. `logprob` weighs every response by the geometric mean probability of
    its steps. A confidence that is not finite weighs 0. The released code draws new subsets for the
    size that was chosen; here the rewards are those that it was chosen for.
    """

    name: ClassVar[str] = "scope"
    title: ClassVar[str] = "SCOPE"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.STEP_LOGPROB})
    pays: ClassVar[Pays] = "response"
    follows_label: ClassVar[bool] = False

    confidence: Literal["logprob", "release"] = "logprob"
    """Map from step log-probs to weights."""
    subset: Share = 0.5
    """Share of the V responses that a subgroup's label is drawn from (32 of 64)."""
    balance: Share = 0.7
    """l, weight of the reward relative to the diversity."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        """Implement `Rule.n_draws`: one number per subgroup and response."""
        return n_votes * sum(n_votes // size for size in subgroup_sizes(n_votes))

    def scores(self, obs: Observations) -> Array:
        """Implement `Rule.scores`: confidences of all V responses, summed per answer."""
        answers = obs.of("answers")
        return self._sums(obs, answers, self.weights(obs))

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`: the label is not read."""
        answers, V = obs.of("answers"), obs.votes.n_votes
        xp = namespace(answers)
        draws = obs.drawn(self.n_draws(V, obs.votes.n_samples))
        draws = xp.reshape(draws, (*answers.shape[:-1], -1, V))
        return self.rewards(obs, self._labels(obs, self.weights(obs), draws))

    def rewards(self, obs: Observations, labels: Array) -> Array:
        """Return the rewards against the labels of all subgroups.

        Args:
            obs: of the batch, with `answers`.
            labels: (..., P, S) of the subgroups, the smallest size first; -2 for none.

        Returns:
            (..., P, K), by the size that is chosen for the batch.
        """
        V, start, cuts = obs.votes.n_votes, 0, []
        for size in subgroup_sizes(V):
            stop = start + V // size
            of_size = labels[..., start:stop]
            cuts.append(cut_by(obs, of_size, size, self.confidence == "release"))
            start = stop
        return choose_cut(cuts, self.balance)[..., : obs.votes.n_samples]

    def weights(self, obs: Observations) -> Array:
        """(..., P, V) confidences of the responses, in their order."""
        logprob = obs.of("step_logprob")
        xp = namespace(logprob)
        known, none = xp.isfinite(logprob), xp.zeros_like(logprob)
        logprob = xp.clip(xp.where(known, logprob, none), max=0.0)
        weights = xp.exp(logprob) if self.confidence == "logprob" else -logprob
        return xp.astype(xp.where(known, weights, none), obs.real)

    def _sums(self, obs: Observations, answers: Array, weights: Array) -> Array:
        """(..., A) confidences that each answer of (..., M) responses got."""
        xp = namespace(answers)
        if self.confidence == "release":
            n_parsed_before = xp.cumulative_sum(xp.astype(answers >= 0, xp.int64), axis=-1) - 1
            weights = xp.take_along_axis(weights, xp.clip(n_parsed_before, min=0), axis=-1)
        return sum_by_id(answers, obs.votes.counts.shape[-1], weights)

    def _drawn(self, obs: Observations, weights: Array, draws: Array, n_drawn: int) -> Array:
        """(..., P, S, A) confidences of the answers in the subset of every subgroup."""
        answers = obs.of("answers")
        xp = namespace(answers)
        if self.confidence == "logprob":
            # Draws that equal the last one in are in too.
            last = xp.sort(draws, axis=-1, stable=False)[..., n_drawn - 1 : n_drawn]
            drawn = xp.astype(draws <= last, obs.real)
            hot = _one_hot(answers, obs.votes.counts.shape[-1], obs.real)
            return xp.matmul(drawn, hot * weights[..., None])
        order = xp.argsort(draws, axis=-1, stable=True)
        answers, weights = (
            xp.take_along_axis(
                xp.broadcast_to(values[..., None, :], draws.shape), order[..., :n_drawn], axis=-1
            )
            for values in (answers, weights)
        )
        return self._sums(obs, answers, weights)

    def _labels(self, obs: Observations, weights: Array, draws: Array) -> Array:
        """(..., P, S) labels of the S subgroups, -2 for none."""
        V = obs.votes.n_votes
        n_drawn = max(1, floor_share(self.subset, V))
        scores = self._drawn(obs, weights, draws, n_drawn)
        xp = namespace(scores)
        if obs.prior is not None:
            prior = n_drawn / V * widen(obs.prior, scores.shape[-1])[..., None, :]
            scores = widen(scores, prior.shape[-1]) + prior
        best = xp.astype(xp.argmax(scores, axis=-1), xp.int64)
        return xp.where(xp.max(scores, axis=-1) > 0, best, xp.full_like(best, -2))


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


def cut_by(obs: Observations, labels: Array, size: int, count_none: bool) -> Cut:
    """Reward every response against its subgroup's label.

    Args:
        obs: of the batch, with `answers`.
        labels: (..., P, S) of the subgroups, -2 for none.
        size: of a subgroup; S times it is V.
        count_none: whether "no label" is one of the distinct labels.
    """
    answers = obs.of("answers")
    xp = namespace(answers)
    member = xp.arange(obs.votes.n_votes, device=device(answers)) // size
    of_member = xp.take(labels, xp.astype(member, xp.int64), axis=-1)
    rewards = xp.astype((answers == of_member) & (answers >= 0), obs.real)
    ordered = xp.sort(labels, axis=-1, stable=False)
    new = ordered[..., 1:] != ordered[..., :-1]
    distinct = 1 + xp.sum(xp.astype(new, obs.real), axis=-1)
    if not count_none:
        distinct = distinct - xp.astype(ordered[..., 0] < 0, obs.real)
    return Cut(rewards, xp.mean(rewards, axis=(-2, -1)), xp.mean(distinct, axis=-1))


def choose_cut(cuts: list[Cut], balance: float) -> Array:
    """(..., P, V) rewards of the best cut, the same one for the whole batch.

    Args:
        cuts: one per size, the smallest first.
        balance: weight of the mean reward relative to the diversity.
    """
    xp = namespace(cuts[0].mean_reward)
    R = xp.stack([cut.mean_reward for cut in cuts], axis=-1)
    D = xp.stack([cut.diversity for cut in cuts], axis=-1)
    front = _front(R, D)
    away = balance * (1 - _scaled(R, front)) ** 2 + (1 - balance) * (1 - _scaled(D, front)) ** 2
    # No distance exceeds 1, so 2 leaves out what others beat.
    chosen = xp.argmin(xp.where(front, away, xp.full_like(away, 2.0)), axis=-1)
    rewards = cuts[0].rewards
    for i, cut in enumerate(cuts):
        rewards = xp.where((chosen == i)[..., None, None], cut.rewards, rewards)
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


def _one_hot(answers: Array, n_answers: int, real: Any) -> Array:
    """(..., P, M, A) floats; 1 where a response gave the answer, all 0 for unparseable ones."""
    xp = namespace(answers)
    ids = xp.arange(n_answers, dtype=answers.dtype, device=device(answers))
    return xp.astype(answers[..., None] == ids, real)
