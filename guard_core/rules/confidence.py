"""Rules that read how sure the model is of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from guard_core.config import Interval, NotNegative, Share, floor_share
from guard_core.rules.rule import Need, Observations, Rule, at_label, filled, per_response, scaled
from guard_core.votes import Array, sum_by_id, widen


@dataclass(frozen=True, slots=True, kw_only=True)
class Intuitor(Rule):
    """`r_i` is the response's self-certainty: mean over its tokens of KL(uniform || model).

    Zhao et al., "Learning to Reason without External Rewards", https://arxiv.org/abs/2505.19590.
    The authors' code takes the mean of logsumexp(z) - mean(z), that divergence plus ln(vocabulary),
    which standardised rewards do not see.

    Example: answers 0 1; certainty .5 2; rewards .5 2.
    """

    name: ClassVar[str] = "intuitor"
    title: ClassVar[str] = "Intuitor"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CERTAINTY})
    has_label: ClassVar[bool] = False

    def pay(self, obs: Observations, label: Array) -> Array:
        return filled(obs.of("certainty")[..., : obs.votes.n_samples])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent(Rule):
    """`r_i` is minus the mean entropy of the response's tokens; unparseable responses get -7.

    Prabhudesai et al., "Maximizing Confidence Alone Improves Reasoning",
    https://arxiv.org/abs/2505.22660; read in the authors' code.

    Example: answers 0 -; entropy .3 .1; rewards -.3 -7.
    """

    name: ClassVar[str] = "rent"
    title: ClassVar[str] = "RENT"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    has_label: ClassVar[bool] = False

    unparseable: Annotated[float, Interval("(-inf, 0]")] = -7.0
    """Reward of a response without a readable answer, in nats."""

    def pay(self, obs: Observations, label: Array) -> Array:
        entropy = filled(obs.of("entropy")[..., : obs.votes.n_samples])
        return np.where(obs.trained >= 0, -entropy, self.unparseable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dare(Rule):
    """`r_i = p(a_i) + alpha b(a_i)`: share by certainty, and a bonus for rare, certain answers.

    Du et al., "Distribution-Aware Reward Estimation for Test-Time Reinforcement Learning",
    https://arxiv.org/abs/2601.21804; read in its abstract and in two summaries that agree on the
    formulas. Answer a has n_a of the V votes and mean token entropy u_a, and p(a) is proportional
    to n_a / (u_a + 1e-8) over the answers. Answers of which p is below `threshold` get 0, and p is
    normalised again over the others. With the M votes that these have, b(a) = (1 - n_a / M) (1 -
    u_a). `alpha` and `threshold` were not seen, nor what an unparseable response gets: here 0, and
    it is no vote of the M.

    Example: threshold .3; answers 0 0 1 2; entropy .5 .5 .25 1; rewards .51667
    .51667 .55 0.
    """

    name: ClassVar[str] = "dare"
    title: ClassVar[str] = "DARE"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    has_label: ClassVar[bool] = False

    alpha: Share = 0.1
    """Weight of the bonus."""
    threshold: Share = 0.05
    """Probability p below which an answer is pruned."""

    def pay(self, obs: Observations, label: Array) -> Array:
        n, u = obs.votes.counts, _by_answer(obs, filled(obs.of("entropy")))
        certain = n / (u + 1e-8)
        kept = (n > 0) & (_normalised(certain) >= self.threshold)
        bonus = (1 - _normalised(np.where(kept, n, 0.0))) * (1 - u)
        reward = _normalised(np.where(kept, certain, 0.0)) + self.alpha * bonus
        return per_response(np.where(kept, reward, 0.0), obs.trained)


def _by_answer(obs: Observations, values: Array) -> Array:
    """(..., P, A) means of (..., P, V) values over the responses of an answer, 0 without any."""
    n = obs.votes.counts
    return sum_by_id(obs.of("answers"), n.shape[-1], values) / np.maximum(n, 1)


def _normalised(values: Array) -> Array:
    """(..., A) divided by their sum, 0 where it is 0."""
    total = np.sum(values, axis=-1, keepdims=True)
    return values / np.where(total > 0, total, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotEM(Rule):
    """No rewards: the loss is the mean token entropy of the responses; labels train nothing.

    Gao et al., "One-shot Entropy Minimization", https://arxiv.org/abs/2505.20282; read in the
    authors' code, which trains on a single problem; here on those of the run.

    Example: answers 0 0 1; rewards 0 0 0.
    """

    name: ClassVar[str] = "one_shot_em"
    title: ClassVar[str] = "One-shot EM"
    has_label: ClassVar[bool] = False
    loss = "entropy"

    def pay(self, obs: Observations, label: Array) -> Array:
        return np.zeros(obs.trained.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SCRL(Rule):
    """Three kinds of answers: the label, negative ones, and the rest.

    Read in the authors' code (https://arxiv.org/abs/2603.19880, `scrl_utils.py`, numbers from
    `run_example.sh`). Shares are of all V votes. The label is positive if its share is at least
    `t_pos` and leads every other answer's by more than `t_margin`, or there is no other. Any answer
    that is not positive is negative if its share is below `t_low` and the mean entropy H_a of its
    responses is at least the mean H of all V. Binary rewards: +1 positive, -1 negative, 0 else.
    Unparseable responses get -1.

    Example: t_low .2; answers 0 0 0 0 0 1 1 2; entropy .2 .2 .2 .2 .2 .2 .2 .6;
    rewards 1 1 1 1 1 0 0 -1.
    """

    name: ClassVar[str] = "scrl"
    title: ClassVar[str] = "SCRL (binary)"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})

    t_pos: Share = 0.375
    """Least share of a positive label."""
    t_margin: Share = 0.125
    """Lead over the second answer that a positive label needs."""
    t_low: Share = 0.125
    """Share below which an answer may be negative."""

    def pay(self, obs: Observations, label: Array) -> Array:
        share, votes = obs.shares, obs.votes.counts
        is_label = np.arange(share.shape[-1]) == label[..., None]
        first = at_label(votes, label)
        second = np.max(np.where(is_label, 0, votes), axis=-1)
        # Whole votes: the difference of two shares would err by rounding.
        leads = ((first - second) / obs.votes.n_votes > self.t_margin) | (second == 0)
        clear = (at_label(share, label) >= self.t_pos) & (first > 0) & leads
        positive = is_label & clear[..., None]
        entropy = filled(obs.of("entropy"))
        excess = _by_answer(obs, entropy - np.mean(entropy, axis=-1, keepdims=True))
        # Equal entropies may differ by rounding, which must not decide on which side of 0 they lie.
        excess = np.where(np.abs(excess) > 1e-6, excess, 0.0)
        negative = ~positive & (share > 0) & (share < self.t_low) & (excess >= 0)
        rewards = self._rewards(share, positive, negative, excess)
        return per_response(rewards, obs.trained, unparseable=-1.0)

    def _rewards(self, share: Array, positive: Array, negative: Array, excess: Array) -> Array:
        """(..., P, A) rewards of the answers, by share, kind, and H_a - H, 0 without responses."""
        return 1.0 * positive - negative


@dataclass(frozen=True, slots=True, kw_only=True)
class SCRLContinuous(SCRL):
    """The continuous rewards of SCRL, with share p and entropies H_a and H.

    Positive `p - l (H_a - H)`, negative `-(t_low - p) - l (H_a - H)`, else `-l (H_a - H)`;
    unparseable -1. The authors' code (https://arxiv.org/abs/2603.19880) says `p - t_pos` in its
    description of the positive reward and pays `p`: `positive_from` offers both.

    Example: t_low .2; answers 0 0 0 0 0 1 1 2; entropy .2 .2 .2 .2 .2 .2 .2 .6;
    rewards .63 .63 .63 .63 .63 .005 .005 -.11.
    """

    name: ClassVar[str] = "scrl_continuous"
    title: ClassVar[str] = "SCRL (continuous)"

    entropy_weight: NotNegative = 0.1
    """l."""
    positive_from: Literal["zero", "t_pos"] = "zero"
    """Baseline that the share of a positive answer is counted from."""

    def _rewards(self, share: Array, positive: Array, negative: Array, excess: Array) -> Array:
        start = self.t_pos if self.positive_from == "t_pos" else 0.0
        gain = np.where(positive, share - start, 0.0)
        loss = np.where(negative, self.t_low - share, 0.0)
        return gain - loss - self.entropy_weight * excess


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Rule):
    """Every subgroup of responses is rewarded against a label of its own.

    Wang et al., "Beyond Majority Voting: Towards Fine-grained and More Reliable Reward Signal for
    Test-Time Reinforcement Learning", https://arxiv.org/abs/2512.15146; read in the authors' code
    (`grouputils.py`, `ray_trainer.py`). For a size g of {1, 2, 4, .., V} that divides V the V
    responses are cut in order into V / g subgroups. Each draws `subset` of the V responses without
    replacement, its label is the argmax over a of sum_i conf_i [a_i = a], the smallest id of
    equals, and its members are rewarded against that label. One g is chosen for the batch: of the
    sizes that no other beats in mean reward R and mean number of distinct labels D, both scaled to
    [0, 1] over these, the one with the least sqrt(l (1 - R)^2 + (1 - l) (1 - D)^2), the smallest of
    equals. Where labels remember, what was remembered counts for `subset` of itself.

    As released, the confidence is the mean negative log-prob of the sampled tokens, which is high
    for unsure responses, and within a subset the j-th parseable answer meets the confidence of the
    j-th response; `release` does both, and counts "no label" among the distinct labels. `logprob`
    weighs every response by the geometric mean probability of its steps. A confidence that is not
    finite weighs 0. The released code draws new subsets for the size that was chosen; here the
    rewards are those that it was chosen for.

    Example: answers 0 1; step_logprob 0 0; draws .1 .9 .9 .1 .1 .9; rewards 1 1.
    """

    name: ClassVar[str] = "scope"
    title: ClassVar[str] = "SCOPE"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.STEP_LOGPROB})
    follows_label: ClassVar[bool] = False

    confidence: Literal["logprob", "release"] = "logprob"
    """Map from step log-probs to weights."""
    subset: Share = 0.5
    """Share of the V responses that a subgroup's label is drawn from (32 of 64)."""
    balance: Share = 0.7
    """l, weight of the reward relative to the diversity."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        return n_votes * sum(n_votes // size for size in subgroup_sizes(n_votes))

    def scores(self, obs: Observations) -> Array:
        return self._sums(obs, obs.of("answers"), self._weights(obs))

    def pay(self, obs: Observations, label: Array) -> Array:
        answers, V = obs.of("answers"), obs.votes.n_votes
        drawn = obs.drawn(self.n_draws(V, obs.votes.n_samples))
        draws = np.reshape(drawn, (*answers.shape[:-1], drawn.shape[-1] // V, V))
        labels, start, cuts = self._labels(obs, self._weights(obs), draws), 0, []
        for size in subgroup_sizes(V):
            of_size = labels[..., start : start + V // size]
            cuts.append(cut_by(obs, of_size, size, self.confidence == "release"))
            start += V // size
        return choose_cut(cuts, self.balance)[..., : obs.votes.n_samples]

    def _weights(self, obs: Observations) -> Array:
        """(..., P, V) confidences of the responses, in their order."""
        logprob = obs.of("step_logprob")
        known = np.isfinite(logprob)
        logprob = np.clip(np.where(known, logprob, 0.0), max=0.0)
        weights = np.exp(logprob) if self.confidence == "logprob" else -logprob
        return np.where(known, weights, 0.0).astype(np.float64)

    def _sums(self, obs: Observations, answers: Array, weights: Array) -> Array:
        """(..., A) confidences that each answer of (..., M) responses got."""
        if self.confidence == "release":
            n_parsed_before = np.cumulative_sum(np.astype(answers >= 0, np.int64), axis=-1) - 1
            weights = np.take_along_axis(weights, np.clip(n_parsed_before, min=0), axis=-1)
        return sum_by_id(answers, obs.votes.counts.shape[-1], weights)

    def _labels(self, obs: Observations, weights: Array, draws: Array) -> Array:
        """(..., P, S) labels of the S subgroups, the smallest size first; -2 for none."""
        answers, V = obs.of("answers"), obs.votes.n_votes
        n_drawn = max(1, floor_share(self.subset, V))
        if self.confidence == "logprob":
            # Draws that equal the last one in are in too.
            last = np.partition(draws, n_drawn - 1, axis=-1)[..., n_drawn - 1 : n_drawn]
            drawn = (draws <= last).astype(np.float64)
            hot = answers[..., None] == np.arange(obs.votes.counts.shape[-1], dtype=answers.dtype)
            scores = np.matmul(drawn, hot * weights[..., None])
        else:
            first = np.argsort(draws, axis=-1, stable=True)[..., :n_drawn]
            shown = (np.broadcast_to(a[..., None, :], draws.shape) for a in (answers, weights))
            scores = self._sums(obs, *(np.take_along_axis(a, first, axis=-1) for a in shown))
        if obs.prior is not None:
            prior = n_drawn / V * widen(obs.prior, scores.shape[-1])[..., None, :]
            scores = widen(scores, prior.shape[-1]) + prior
        return np.where(np.max(scores, axis=-1) > 0, np.argmax(scores, axis=-1), -2)


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
    """Reward responses against the labels (..., P, S) of their subgroups of this size, -2 for none.

    `count_none`: "no label" is one of the distinct labels.
    """
    answers = obs.of("answers")
    rewards = ((answers == np.repeat(labels, size, axis=-1)) & (answers >= 0)).astype(np.float64)
    ordered = np.sort(labels, axis=-1)
    distinct = 1 + np.sum(ordered[..., 1:] != ordered[..., :-1], axis=-1)
    if not count_none:
        distinct = distinct - (ordered[..., 0] < 0)
    return Cut(rewards, np.mean(rewards, axis=(-2, -1)), np.mean(distinct, axis=-1))


def choose_cut(cuts: list[Cut], balance: float) -> Array:
    """(..., P, V) rewards of the best of cuts (smallest size first), one for the whole batch."""
    R = np.stack([cut.mean_reward for cut in cuts], axis=-1)
    D = np.stack([cut.diversity for cut in cuts], axis=-1)
    # The cuts that no other beats in one of both and equals in the other.
    more_R, more_D = (values[..., None, :] > values[..., None] for values in (R, D))
    less_R, less_D = (values[..., None, :] < values[..., None] for values in (R, D))
    front = ~np.any((more_R | more_D) & ~less_R & ~less_D, axis=-1)
    # What is equal on all of the front is 1, and decides nothing.
    of_R, of_D = ((1 - scaled(values, front, 1.0)) ** 2 for values in (R, D))
    away = np.where(front, balance * of_R + (1 - balance) * of_D, np.inf)
    chosen = np.argmin(away, axis=-1)[None, ..., None, None]
    return np.take_along_axis(np.stack([cut.rewards for cut in cuts]), chosen, axis=0)[0]
