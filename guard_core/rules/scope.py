"""SCOPE: labels of many subgroups, weighted by the confidence of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from guard_core.arrays import Array, floor_share, namespace, widen
from guard_core.checks import Share
from guard_core.rules.rule import Need, Pays, Rule
from guard_core.rules.scope_sizes import choose_cut, cut_by, subgroup_sizes
from guard_core.rules.seen import Seen, one_hot


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
    """How step log-probs become weights."""
    subset: Share = 0.5
    """Share of the V responses that a subgroup's label is drawn from (32 of 64)."""
    balance: Share = 0.7
    """l, how much the reward counts beside the diversity."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        """See `Rule.n_draws`; one number per subgroup and response."""
        return n_votes * sum(n_votes // size for size in subgroup_sizes(n_votes))

    def scores(self, seen: Seen) -> Array:
        """See `Rule.scores`; the guard watches the confidences of all V responses in order."""
        answers = seen.of("answers")
        return self._sums(seen, answers, self._weights(seen))

    def pay(self, seen: Seen, label: Array) -> Array:
        """See `Rule.pay`; the label is not read."""
        answers, V = seen.of("answers"), seen.votes.n_votes
        xp = namespace(answers)
        draws = seen.drawn(self.n_draws(V, seen.votes.n_samples))
        draws = xp.reshape(draws, (*answers.shape[:-1], -1, V))
        labels = self._labels(seen, self._weights(seen), draws)
        start, cuts = 0, []
        for size in subgroup_sizes(V):
            stop = start + V // size
            of_size = labels[..., start:stop]
            cuts.append(cut_by(seen, of_size, size, self.confidence == "release"))
            start = stop
        return choose_cut(cuts, self.balance)[..., : seen.votes.n_samples]

    def _weights(self, seen: Seen) -> Array:
        """(..., P, V) confidences of the responses, in their order."""
        logprob = seen.of("step_logprob")
        xp = namespace(logprob)
        known, none = xp.isfinite(logprob), xp.zeros_like(logprob)
        logprob = xp.clip(xp.where(known, logprob, none), max=0.0)
        weights = xp.exp(logprob) if self.confidence == "logprob" else -logprob
        return xp.astype(xp.where(known, weights, none), seen.real)

    def _sums(self, seen: Seen, answers: Array, weights: Array) -> Array:
        """(..., A) confidences that each answer of (..., M) responses got."""
        xp = namespace(answers)
        if self.confidence == "release":
            place = xp.cumulative_sum(xp.astype(answers >= 0, xp.int64), axis=-1) - 1
            weights = xp.take_along_axis(weights, xp.clip(place, min=0), axis=-1)
        hot = one_hot(answers, seen.votes.counts.shape[-1], seen.real)
        return xp.sum(hot * weights[..., None], axis=-2)

    def _drawn(self, seen: Seen, weights: Array, draws: Array, n_drawn: int) -> Array:
        """(..., P, S, A) confidences of the answers in the subset of every subgroup."""
        answers = seen.of("answers")
        xp = namespace(answers)
        if self.confidence == "logprob":
            # Draws that equal the last one in are in too.
            last = xp.sort(draws, axis=-1, stable=False)[..., n_drawn - 1 : n_drawn]
            drawn = xp.astype(draws <= last, seen.real)
            hot = one_hot(answers, seen.votes.counts.shape[-1], seen.real)
            return xp.matmul(drawn, hot * weights[..., None])
        order = xp.argsort(draws, axis=-1, stable=True)
        answers, weights = (
            xp.take_along_axis(
                xp.broadcast_to(own[..., None, :], draws.shape), order[..., :n_drawn], axis=-1
            )
            for own in (answers, weights)
        )
        return self._sums(seen, answers, weights)

    def _labels(self, seen: Seen, weights: Array, draws: Array) -> Array:
        """(..., P, S) labels of the S subgroups, -2 for none."""
        V = seen.votes.n_votes
        n_drawn = max(1, floor_share(self.subset, V))
        scores = self._drawn(seen, weights, draws, n_drawn)
        xp = namespace(scores)
        if seen.prior is not None:
            prior = n_drawn / V * widen(seen.prior, scores.shape[-1])[..., None, :]
            scores = widen(scores, prior.shape[-1]) + prior
        best = xp.astype(xp.argmax(scores, axis=-1), xp.int64)
        return xp.where(xp.max(scores, axis=-1) > 0, best, xp.full_like(best, -2))
