"""CoVerRL: the model verifies its own majority, and doubtful problems are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import device

from guard_core.arrays import Array, namespace, widen
from guard_core.checks import Count, Natural, NotNegative
from guard_core.rules.observations import Observations, per_response
from guard_core.rules.rule import Need, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class CoVerRL(Rule):
    """Reward format and match, unless a verifier doubts the majority.

    Read in the authors' code (arXiv 2603.17775, `recipe/cover_rl`; 32 responses, 16 trained,
    learning rate 5e-7, upper clip .28, temperature 1). The same model judges up to `verifications`
    responses of the majority once each, and one response of the least frequent other answer as
    often; where the majority has fewer, the largest even number of them. A problem whose majority
    is judged wrong at least as often as right leaves the batch. One without a readable verdict
    stays; nobody is asked where all agree, or where the majority is a single response.

    That code also trains the verifier, see `verifier_rewards`, and regenerates: where the problem
    stays, every readable "wrong", also about the rival, is followed in the same conversation by
    `regenerations` new solutions, see `regeneration_rewards`. Both are the world's to do.
    Verifications are standardised among those of one answer, new solutions among those behind one
    verdict. Unreadable verdicts are not asked for again.

    That code differs in three things. It reads every verdict somehow, an unclear one as right
    unless it speaks of a mistake. It asks for six new solutions, but rounds down to a multiple of
    its GPUs: four on the four of its script. And an unparseable rival is compared with all such
    rivals of the batch.
    """

    name: ClassVar[str] = "coverrl"
    title: ClassVar[str] = "CoVerRL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.VERDICTS})
    pays: ClassVar[Pays] = "answer"

    verifications: Count = 8
    """Most responses of the majority that are verified."""
    format_reward: NotNegative = 1.0
    """Reward of a parseable response, on top of 1 for a match."""
    regenerations: Natural = 6
    """New solutions behind each verdict that a response is wrong; 0 asks for none."""

    def questions(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.questions`: one half about the majority, the other about the rival.

        Of the majority the first responses are asked about. The rival is the first response among
        those of the least frequent other answers; an unparseable one where there is no other.
        """
        return _questions(obs, label, self.verifications)

    def weigh(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.weigh`."""
        trusted = self.trusts(obs.of("verdicts"))
        return namespace(trusted).astype(trusted, obs.real)

    def trusts(self, verdicts: Array) -> Array:
        """(..., P) bool of (..., P, 2 * verifications) verdicts: the problem stays in the batch."""
        majority = verdicts[..., : self.verifications]
        xp = namespace(majority)
        right = xp.sum(xp.astype(majority == 1, xp.int64), axis=-1)
        wrong = xp.sum(xp.astype(majority == 0, xp.int64), axis=-1)
        return (right > wrong) | (right + wrong == 0)

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        return self._format_and_match(obs.columns, label, obs.real)

    def verifier_rewards(self, obs: Observations) -> Array:
        """(..., P, 2 * verifications) rewards of verdicts: readable, agreeing with the vote.

        The majority's responses should be judged right, the rival's wrong. Entries whose question
        was -1 mean nothing.
        """
        verdicts = obs.of("verdicts")
        xp = namespace(verdicts)
        index = xp.arange(verdicts.shape[-1], device=device(verdicts))
        agrees = xp.where(index < self.verifications, verdicts == 1, verdicts == 0)
        readable = xp.astype(verdicts >= 0, obs.real)
        return self.format_reward * readable + xp.astype(agrees, obs.real)

    def regeneration_rewards(self, answers: Array, label: Array) -> Array:
        """(..., M, N) rewards of N new solutions behind each of M verdicts, as those of responses.

        Args:
            answers: (..., M, N) answer ids, -1 unparseable.
            label: (..., M) the label of the verdict's problem.
        """
        return self._format_and_match(answers, label, namespace(answers).float64)

    def _format_and_match(self, ids: Array, label: Array, real: Any) -> Array:
        xp = namespace(ids)
        match = xp.astype(ids == label[..., None], real)
        return match + self.format_reward * xp.astype(ids >= 0, real)


def _questions(obs: Observations, label: Array, verifications: int) -> Array:
    """(..., P, 2 * verifications) places of responses, -1 asks nothing.

    Args:
        obs: of the batch, with `answers`.
        label: (..., P) the majority's answer, -1 for none.
        verifications: most responses of the majority that are asked about.
    """
    answers, V = obs.of("answers"), obs.votes.n_votes
    xp = namespace(answers)
    wins = (answers == label[..., None]) & (label >= 0)[..., None]
    n_wins = xp.sum(xp.astype(wins, xp.int64), axis=-1, keepdims=True)
    # The majority's places in order, and behind them V for everybody else.
    order = xp.arange(V + verifications, dtype=xp.int16, device=device(answers))
    places = xp.where(wins, order[:V], xp.full_like(order[:V], V))
    places = xp.sort(places, axis=-1, stable=False)[..., : min(V, verifications)]
    n_asked = _n_asked(n_wins, V, verifications)
    asked = order[:verifications] < n_asked
    nothing = xp.full(
        (*n_wins.shape[:-1], verifications), -1, dtype=xp.int64, device=device(answers)
    )
    places = xp.astype(widen(places, verifications), xp.int64)
    rival = xp.where(asked, _rival(obs, wins)[..., None], nothing)
    return xp.concat([xp.where(asked, places, nothing), rival], axis=-1)


def _n_asked(n_wins: Array, n_votes: int, verifications: int) -> Array:
    """(..., P, 1) responses of the majority that are asked about."""
    xp = namespace(n_wins)
    even = n_wins - n_wins % 2
    asked = xp.where(n_wins >= verifications, verifications, even)
    return xp.where(n_wins < n_votes, asked, 0)


def _rival(obs: Observations, wins: Array) -> Array:
    """(..., P) place of the response that stands for all that the majority is not."""
    answers, V = obs.of("answers"), obs.votes.n_votes
    counts = obs.votes.counts
    xp = namespace(counts)
    unparseable = xp.full_like(counts[..., :1], V + 1)
    votes = per_response(xp.concat([counts, unparseable], axis=-1), answers)
    return xp.argmin(xp.where(wins, xp.full_like(votes, V + 2), votes), axis=-1)
