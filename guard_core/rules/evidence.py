"""Rules that ask for more evidence: a second vote set, a tool, a verifier, similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from guard_core.config import Count, Natural, NotNegative
from guard_core.rules.rule import Need, Observations, Rule, masked_mean, per_response, scaled
from guard_core.votes import Array, sum_by_id, widen


def count_second(obs: Observations) -> Array:
    """(..., P, A) votes of the second set."""
    second = obs.of("second")
    return sum_by_id(second, obs.votes.counts.shape[-1], np.ones(second.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding1(Rule):
    """TTRL with the label that wins the vote on a paraphrase of the problem.

    Zhang et al., "Co-rewarding: Stable Self-supervised RL for Eliciting Reasoning in LLMs",
    https://arxiv.org/abs/2508.00410, part I; read in the authors' code
    (`reward_manager/co_reward.py`). The responses to the paraphrase are trained as well, on the
    label of the original. Where none of them can be parsed, that code rewards nobody; here the
    label stays what it was.

    Example: answers 0 0 1; second 1 1 0; rewards 0 0 1.
    """

    name: ClassVar[str] = "co_rewarding_1"
    title: ClassVar[str] = "Co-rewarding I"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PARAPHRASE})
    trains_second: ClassVar[bool] = True

    def scores(self, obs: Observations) -> Array:
        return count_second(obs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRewarding2(Rule):
    """TTRL with the label that wins the vote of an exponential moving average of the model.

    Part II of the same paper, https://arxiv.org/abs/2508.00410; read in the authors' code
    (`reward_manager/co_rewarding_II.py`): the average's rate falls from .01 to 1e-5 along a cosine.

    Example: answers 0 0 1; second 1 1 0; rewards 0 0 1.
    """

    name: ClassVar[str] = "co_rewarding_2"
    title: ClassVar[str] = "Co-rewarding II"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEACHER})

    def scores(self, obs: Observations) -> Array:
        return count_second(obs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfHarmony(Rule):
    """TTRL with y = argmax of the harmonic mean of an answer's shares on question and rewording.

    Wang et al., "Self-Harmony: Learning to Harmonize Self-Supervision and Self-Play in Test-Time
    Reinforcement Learning", https://arxiv.org/abs/2511.01191; only the abstract was read. Shares
    are of all responses, unparseable ones included. An answer that one of the two vote sets lacks
    scores 0; where the sets share no answer, the label stays what it was.

    Example: answers 0 0 1 -; second 1 1 1 2; rewards 0 0 1 0.
    """

    name: ClassVar[str] = "self_harmony"
    title: ClassVar[str] = "Self-Harmony"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PARAPHRASE})

    def scores(self, obs: Observations) -> Array:
        first = obs.shares
        second = count_second(obs) / max(1, obs.of("second").shape[-1])
        total = first + second
        return 2 * first * second / np.where(total > 0, total, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class T3RL(Rule):
    """TTRL with y = argmax over a of sum_i (`verified_weight` if verified_i else 1) [a_i = a].

    Liao et al., "Tool Verification for Test-Time Reinforcement Learning",
    https://arxiv.org/abs/2603.02203. Only the abstract and a summary were read: the weight of 5 and
    what a tool checks are from there, no code was seen.

    Example: answers 0 0 1; tool 0 0 1; rewards 0 0 1.
    """

    name: ClassVar[str] = "t3rl"
    title: ClassVar[str] = "T3RL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TOOL})

    verified_weight: NotNegative = 5.0
    """Votes that a confirmed response counts for."""

    def scores(self, obs: Observations) -> Array:
        weight = 1.0 + (self.verified_weight - 1.0) * obs.of("tool")
        return sum_by_id(obs.of("answers"), obs.votes.counts.shape[-1], weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoVerRL(Rule):
    """Reward format and match, unless a verifier doubts the majority.

    Read in the authors' code (https://arxiv.org/abs/2603.17775, `recipe/cover_rl`). The same model
    judges up to `verifications` responses of the majority once each, and one response of the least
    frequent other answer as often; where the majority has fewer, the largest even number of them. A
    problem whose majority is judged wrong at least as often as right leaves the batch. One without
    a readable verdict stays; nobody is asked where all agree, or where the majority is a single
    response.

    That code also trains the verifier, see `verifier_rewards`, and regenerates: where the problem
    stays, every readable "wrong", also about the rival, is followed in the same conversation by
    `regenerations` new solutions, see `regeneration_rewards`. Both are the world's to do.
    Verifications are standardised among those of one answer, new solutions among those behind one
    verdict.

    That code differs in three things. It reads every verdict somehow, an unclear one as right
    unless it speaks of a mistake. It rounds its six new solutions down to a multiple of its GPUs.
    And an unparseable rival is compared with all such rivals of the batch.

    Example: verifications 1; answers 0 0 1; verdicts 0 1; weight 0.
    """

    name: ClassVar[str] = "coverrl"
    title: ClassVar[str] = "CoVerRL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.VERDICTS})

    verifications: Count = 8
    """Most responses of the majority that are verified."""
    format_reward: NotNegative = 1.0
    """Reward of a parseable response, on top of 1 for a match."""
    regenerations: Natural = 6
    """New solutions behind each verdict that a response is wrong; 0 asks for none."""

    def questions(self, obs: Observations, label: Array) -> Array:
        """As `Rule.questions`: half about the majority's first responses, half about its rival."""
        answers, V = obs.of("answers"), obs.votes.n_votes
        wins = (answers == label[..., None]) & (label >= 0)[..., None]
        n_wins, most = wins.sum(axis=-1, keepdims=True), self.verifications
        n_asked = np.where(n_wins >= most, most, n_wins - n_wins % 2)
        is_asked = np.arange(most) < np.where(n_wins < V, n_asked, 0)
        # Those of the majority come first, in their order.
        places = widen(np.argsort(~wins, axis=-1, stable=True)[..., :most], most)
        # A representative response of the least frequent other answer.
        votes = np.where(wins, V + 2, per_response(obs.votes.counts, answers, unparseable=V + 1))
        rival = np.where(is_asked, np.argmin(votes, axis=-1, keepdims=True), -1)
        return np.concatenate([np.where(is_asked, places, -1), rival], axis=-1)

    def weigh(self, obs: Observations, label: Array) -> Array:
        return self.trusts(obs.of("verdicts")).astype(np.float64)

    def trusts(self, verdicts: Array) -> Array:
        """(..., P) bool of (..., P, 2 * verifications) verdicts: the problem stays in the batch."""
        majority = verdicts[..., : self.verifications]
        right, wrong = (np.sum(majority == verdict, axis=-1) for verdict in (1, 0))
        return (right > wrong) | (right + wrong == 0)

    def pay(self, obs: Observations, label: Array) -> Array:
        return CoVerRL.regeneration_rewards(self, obs.trained, label)

    def verifier_rewards(self, obs: Observations) -> Array:
        """(..., P, 2 * verifications) rewards of verdicts: readable, agreeing with the vote."""
        verdicts = obs.of("verdicts")
        index = np.arange(verdicts.shape[-1])
        agrees = np.where(index < self.verifications, verdicts == 1, verdicts == 0)
        return self.format_reward * (verdicts >= 0) + agrees

    def regeneration_rewards(self, answers: Array, label: Array) -> Array:
        """(..., M, N) rewards of N new solutions behind each of M verdicts, as those of responses.

        `answers` (..., M, N) are ids, -1 unparseable; `label` (..., M) those of the problems.
        """
        parsed = answers >= 0
        return ((answers == label[..., None]) & parsed) + self.format_reward * parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolRL(Rule):
    """Majority responses earn .5 to 1, others -1 to -.5, the more the less they resemble others.

    Zhou et al., "Evolving Language Models without Labels: Majority Drives Selection, Novelty
    Promotes Variation", https://arxiv.org/abs/2509.15194; read in the authors' code
    (`reward_manager/semantic_novelty.py`). With s the cosine similarity of two parseable responses,
    cut to [0, 1], novelty is `u_i = 1 - (mean of s_ij over the same side + max of s_ij over all
    others) / 2`, scaled to [0, 1] inside {majority} and {rest}; equal novelties scale to .5.
    Majority `.5 + .5 u`, rest `-1 + .5 u`; a lone majority response gets 1, a lone other -.5. An
    unparseable response gets -1 and is on no side. A similarity that is not finite is 0.

    That code calls a response invalid whose box holds no digit, embeds what follows the thinking,
    and gives -1 to a response that is the only valid one among several; here it is a lone one. It
    takes sides and novelties over all V votes and trains the first K; here both are over the K.

    Example: answers 0 1; similarity 1 .2 .2 1; rewards 1 -.5.
    """

    name: ClassVar[str] = "evol_rl"
    title: ClassVar[str] = "EVOL-RL"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIMILARITY})

    def pay(self, obs: Observations, label: Array) -> Array:
        wins, parsed = obs.hits(label), obs.trained >= 0
        loses = parsed & ~wins
        similarity = obs.of("similarity")
        known = np.where(np.isfinite(similarity), similarity, 0.0).astype(np.float64).clip(0.0, 1.0)
        response = np.arange(obs.votes.n_samples)
        other = (response[:, None] != response) & parsed[..., None, :]
        mean = masked_mean(known, (wins[..., :, None] == wins[..., None, :]) & other)
        # Similarities are at least 0, which is also the largest of none.
        most = np.max(np.where(other, known, 0.0), axis=-1)
        novelty = 1 - (mean + most) / 2
        # Differences of rounding must not be blown up to the whole range.
        of_wins, of_loses = (scaled(novelty, side, 0.5, least=1e-6) for side in (wins, loses))
        n_wins, n_loses = (np.sum(side, axis=-1, keepdims=True) for side in (wins, loses))
        won = np.where(n_wins == 1, 1.0, 0.5 + 0.5 * of_wins)
        lost = np.where(n_loses == 1, -0.5, -1 + 0.5 * of_loses)
        return np.where(parsed, np.where(wins, won, lost), -1.0)
