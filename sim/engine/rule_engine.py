"""A rule in the simulator: the guard decides, `guard_core.rules` scores and rewards.

A batch goes observe -> decide -> reward -> gradient. The rule's own functions run on arrays whose
leading axis is the replicates; only the rules of `sim.rules.FAST` have a part of them compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from guard_core import Decision, PolicyStreams, Votes, policy_streams
from guard_core.advantages import minority_advantages
from guard_core.arrays import sum_by_id
from guard_core.rules import Need, Observations, make_rule, rule_advantages, weighed
from sim.engine.kernel import Update, sharpen, sums_gradient, weighted_streams
from sim.engine.rows import Epoch
from sim.rules import fast_rule
from sim.settings.config import SimConfig
from sim.world.observe.observer import Observer, Visit

Floats = NDArray[np.float64]

_CHUNK = 64
"""Problems whose scores at visit 0 are computed at once; bounds the memory."""


class DecidingGuard(Protocol):
    """Interface between a rule and the guard of an engine."""

    def remembered(self, problems_RP: NDArray[np.int64]) -> Floats | None:
        """Return the scores of earlier visits, see `guard_core.Guard.remembered`."""
        ...

    def decide(self, epoch: Epoch, start: int, votes: Votes, scores_RPA: Floats | None) -> Decision:
        """Record the decision about a batch and return it; its label is the guard's own.

        Args:
            epoch: the decisions are written to its records.
            start: place of the batch's first visit in the epoch.
            scores_RPA: of a rule; None for the votes.
        """
        ...


class RuleLearner:
    """Learns from the rewards of a rule, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, guard: DecidingGuard, observer: Observer) -> None:
        """Start from a primed guard."""
        self._config, self._guard, self._observer = config, guard, observer
        self._rule = observer.rule
        self._fast = fast_rule(self._rule, config.n_votes) if config.engine == "compiled" else None

    def step(
        self, epoch: Epoch, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: Floats
    ) -> Update:
        """Implement `sim.engine.simulation.Learner`: the drawn samples are trained on."""
        visit = self._visit(epoch, start, votes, p_RPA)
        prior_RPA = self._guard.remembered(visit.problems_RP)
        fast = self._fast
        obs = (
            self._observer.see(visit, prior_RPA)
            if fast is None
            else self._observer.see(visit, prior_RPA, spared=fast.spares, draws=False)
        )
        scores = None if self._rule.labels_by_votes() else self._rule.scores(obs)
        decision = self._guard.decide(epoch, start, votes, scores)
        if self._config.labels == "truth":
            decision = decision.trained_on(visit.truth_RP)
        if Need.VERDICTS in self._rule.needs:
            obs = replace(obs, verdicts=self._verdicts(visit, obs, decision))
        rewards_RPK = None
        if fast is not None:
            rewards_RPK = fast.rewards(self._rule, self._observer, visit, obs, decision.label)
        return self._update(obs, decision, p_RPA, rewards_RPK)

    def _visit(self, epoch: Epoch, start: int, votes: Votes, p_RPA: Floats) -> Visit:
        at = slice(start, start + p_RPA.shape[1])
        c = self._config
        batch = (epoch.epoch - 1) * c.n_batches + start // c.batch_size + 1
        problems_RP = np.ascontiguousarray(epoch.problems_RN[:, at])
        truth_RP = np.ascontiguousarray(epoch.truth_RN[:, at])
        return Visit(epoch.epoch, batch, problems_RP, truth_RP, votes, p_RPA)

    def _verdicts(self, visit: Visit, obs: Observations, decision: Decision) -> NDArray[np.int8]:
        asked_RPQ = self._rule.questions(obs, decision.label)
        answers_RPQ = np.take_along_axis(obs.of("answers"), np.maximum(asked_RPQ, 0), axis=-1)
        return self._observer.verdicts(visit, np.where(asked_RPQ < 0, -2, answers_RPQ))

    def _update(
        self, obs: Observations, decision: Decision, p_RPA: Floats, rewards_RPK: Floats | None
    ) -> Update:
        rule, config, out_RPA = self._rule, self._config.guard, np.empty_like(p_RPA)
        if rule.loss == "entropy":
            sharpen(p_RPA, out_RPA)
            return Update(out_RPA, np.zeros(p_RPA.shape[:2], np.bool_))
        majority = rule_advantages(rule, obs, decision, config, rewards_RPK)
        minority = np.zeros(1)
        if config.mps:
            of = (obs.votes.samples, obs.votes.n_samples)
            minority = minority_advantages(*of, decision, config)
        streams = policy_streams(majority, minority, decision, config)
        streams = weighed(rule, obs, decision.label, streams)
        sums_RPA = self._sums(obs, streams)
        to = (p_RPA, np.ascontiguousarray(streams.weight), np.ascontiguousarray(streams.drop))
        sums_gradient(sums_RPA, obs.votes.n_samples, *to, out_RPA)
        return Update(out_RPA, streams.drop, weighted_streams(streams, self._config))

    def _sums(self, obs: Observations, streams: PolicyStreams) -> Floats:
        """Sum both streams over the responses of every answer."""
        samples_RPA, K = obs.votes.samples, obs.votes.n_samples
        A, protects = samples_RPA.shape[-1], self._config.guard.mps
        if self._rule.pays == "response":
            sums_RPA = sum_by_id(obs.of("answers")[..., :K], A, streams.majority)
            return sums_RPA + samples_RPA * streams.minority[..., :A] if protects else sums_RPA
        both = streams.majority + streams.minority if protects else streams.majority
        return samples_RPA * both[..., :A]


class RuleStart:
    """A rule before training: its observer and its scores at visit 0."""

    def __init__(self, config: SimConfig, truth_RN: NDArray[np.int32]) -> None:
        """Start before visit 0.

        Args:
            truth_RN: true answers by problem, for the observation models.
        """
        self._config = config
        self._rule = make_rule(config.rule, config.rule_options)
        self._observer = Observer(config, self._rule)
        self._truth_RN = truth_RN

    def first_scores(self, votes: Votes, p_of: Floats) -> Floats | None:
        """Return the rule's scores at visit 0; None where they are the votes.

        Args:
            p_of: (R, N, A) the probabilities that they were drawn from.
        """
        if self._rule.labels_by_votes():
            return None
        starts = range(0, p_of.shape[1], _CHUNK)
        visits = (self._first_visit(votes, p_of, slice(start, start + _CHUNK)) for start in starts)
        scores = [self._rule.scores(self._observer.see(visit)) for visit in visits]
        return np.concatenate(scores, axis=1)

    def learner(self, guard: DecidingGuard) -> RuleLearner:
        """Return the rule's learner on a guard that has seen visit 0."""
        return RuleLearner(self._config, guard, self._observer)

    def _first_visit(self, votes: Votes, p_of: Floats, at: slice) -> Visit:
        p_RPA = np.ascontiguousarray(p_of[:, at])
        counts, samples = (np.ascontiguousarray(a[:, at]) for a in (votes.counts, votes.samples))
        part = Votes(counts, samples, votes.n_votes, votes.n_samples)
        problems_P = np.arange(at.start, at.start + p_RPA.shape[1])
        problems_RP = np.tile(problems_P, (p_RPA.shape[0], 1))
        truth_RP = np.ascontiguousarray(self._truth_RN[:, at])
        return Visit(0, 0, problems_RP, truth_RP, part, p_RPA)
