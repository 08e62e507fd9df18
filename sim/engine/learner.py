"""Learners: from a batch's votes to the guard's decisions, a rule's rewards, and the update.

Without a rule, `GuardLearner` decides and rewards the label in compiled code. With one, a batch
goes observe -> decide -> reward -> gradient: the rule's own functions run on arrays whose leading
axis is the replicates; only the rules of `sim.engine.rules.FAST` have a part of them compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import (
    Decision,
    Draws,
    Guard,
    Votes,
    answer_advantages,
    policy_streams,
)
from guard_core.advantages import minority_advantages
from guard_core.config import settings
from guard_core.decision import Treatment, rerouted
from guard_core.machine_code import memory_of, records_of
from guard_core.mps import candidate_votes
from guard_core.rcsu import at_high_risk, skip_cap
from guard_core.rules import Need, Observations, make_rule, rule_advantages, weighed
from guard_core.votes import sum_by_id
from lab.arm_settings import Treatments
from lab.base.arms import OWN
from lab.trace.schema import DECIDED
from sim.engine.kernel import (
    Batch,
    Targets,
    Visits,
    count_hits,
    decide,
    learn,
    prime,
    sharpen,
    sums_gradient,
    visit_all,
    weighted_streams,
)
from sim.engine.rows import Epoch
from sim.engine.rules import fast_rewards
from sim.settings.config import SimConfig
from sim.world.observe import AnswerObserver, ObservedVisit, with_unparseable
from sim.world.policies import Directions, Update
from sim.world.sampling import Floats, Ints

_CHUNK = 64
"""Problems whose scores at visit 0 are computed at once; bounds the memory."""


class GuardLearner:
    """Decides batch by batch and rewards the label."""

    def __init__(
        self, config: SimConfig, epoch: Epoch, votes: Votes, scores_RNA: Floats | None = None
    ) -> None:
        """Start from visit 0, whose labels are written to the records of `epoch`.

        Args:
            scores_RNA: (R, N, A) of a rule, which labels are chosen by; the votes if left out.

        Raises:
            UserError: there are no decisions to replay for this run.
        """
        self._config = config
        sizes = config.n_votes, config.n_samples
        self._settings = settings(config.guard, *sizes)
        self._settings_1 = records_of(self._settings)
        shape = {"leading": (config.replicates,), "n_answers": config.n_answers}
        self._memory = memory_of(Guard(config.guard).init(config.n_problems, **shape).columns())
        numbers = range(config.first_replicate, config.first_replicate + config.replicates)
        sizes = config.epochs, config.n_problems
        self._treatments = Treatments(config.treatment, config.seed, numbers, sizes)
        chosen_by = votes.counts if scores_RNA is None else scores_RNA
        given = (epoch.draws.tie, chosen_by, votes.counts, epoch.records_RN)
        prime(self._settings_1, self._memory, *given)

    def step(
        self, epoch: Epoch, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: Floats
    ) -> Update:
        """Decide on one batch, write it to the epoch's records, and return the update.

        Args:
            start: place of the batch's first visit in the epoch.
            trained_RPA: samples per answer that the update is computed from; the votes' own, or
                their expectation.
            p_RPA: the probabilities that the votes were drawn from.
        """
        at = slice(start, start + p_RPA.shape[1])
        targets = self._decide(epoch, at, votes, trained_RPA, None)
        if self._config.policy != "measured":
            update = Update(np.empty_like(p_RPA), np.empty(p_RPA.shape[:2], np.bool_))
            of = (trained_RPA, targets, epoch.records_RN[:, at], p_RPA)
            learn(self._settings_1, *of, update.gradient_RPA, update.drop_RP)
            return update
        guard = self._config.guard
        decision = replace(self._decision(epoch, at, targets), label=targets.label_RP)
        pair = answer_advantages(trained_RPA, votes.n_samples, decision, guard)
        streams = policy_streams(*pair, decision, guard)
        # The measured policy trains on the streams and reads no gradient.
        return Update(np.zeros_like(p_RPA), streams.drop, weighted_streams(streams, self._config))

    def visit_all(self, epoch: Epoch, step_B: Floats, policy: Directions) -> Ints:
        """Make all visits of an epoch at once, with plain settings, see `Simulation`.

        Returns:
            (R,) place of the first visit whose logits are not finite, -1 for none.
        """
        c, size = self._config, self._config.batch_size
        last = c.n_problems - (c.n_batches - 1) * size
        batches = (Batch.of_size(size, c), Batch.of_size(last, c))
        bad_R = np.empty(c.replicates, np.int64)
        rows: Any = (epoch.records_RN, epoch.norm_RN, epoch.counts_SNA)
        visits = Visits(_drawn(epoch.draws), epoch.problems_RN, epoch.truth_RN, step_B, *rows)
        visit_all(
            (c.seed, c.first_replicate, epoch.epoch),
            (1.0 - c.unparseable, c.labels == "truth", self._settings_1),
            batches,
            visits,
            self._memory,
            policy,
            bad_R,
        )
        return bad_R

    def remembered(self, problems_RP: Ints) -> Floats | None:
        """(R, P, A) scores of earlier visits, as of `guard_core.Guard.remembered`."""
        if not self._settings.label_from_memory:
            return None
        memory_RPA = np.take_along_axis(self._memory.votes, problems_RP[..., None], axis=1)
        return self._settings.discount * memory_RPA

    def decide(self, epoch: Epoch, start: int, votes: Votes, scores_RPA: Floats | None) -> Decision:
        """Record the decision about a batch and return it; its label is the guard's own."""
        at = slice(start, start + votes.counts.shape[1])
        return self._decision(epoch, at, self._decide(epoch, at, votes, votes.samples, scores_RPA))

    def _decision(self, epoch: Epoch, at: slice, targets: Targets) -> Decision:
        decided = {field: epoch.records_RN[name][:, at].copy() for name, field in DECIDED.items()}
        visits_RN = self._memory.problems["visits"]
        visits_RP = np.take_along_axis(visits_RN, epoch.problems_RN[:, at], axis=1)
        rates = (decided["had_competition"], visits_RP, decided["mean_match_rate"])
        return Decision(
            **decided,
            visits=visits_RP,
            high_risk=at_high_risk(self._settings, *rates),
            minority=targets.minority_RPA,
            candidate_votes=targets.candidate_votes_RPA,
        )

    def _decide(
        self,
        epoch: Epoch,
        at: slice,
        votes: Votes,
        trained_RPA: NDArray[Any],
        scores_RPA: Floats | None,
    ) -> Targets:
        """Decide, record it, and count who is rewarded; the scores are a rule's, if it has any."""
        config, draws, records_RP = self._config, epoch.draws, epoch.records_RN[:, at]
        candidates = candidate_votes(votes, self._settings.minority_over_samples)
        targets = Targets.empty(candidates)
        chosen_by = votes.counts if scores_RPA is None else scores_RPA
        decide(
            self._settings_1,
            self._memory,
            _drawn(draws),
            epoch.problems_RN[:, at],
            chosen_by,
            votes.counts,
            skip_cap(records_RP.shape[1], config.guard),
            candidates,
            targets.minority_RPA,
            np.empty(records_RP.shape[1]),
            records_RP,
        )
        if config.treatment != OWN:
            self._treat(epoch, at)
        truth_RP = epoch.truth_RN[:, at]
        count_hits(config.labels == "truth", truth_RP, trained_RPA, records_RP, targets)
        if config.update == "sampled":
            return targets
        # Sums of fractions depend on the order of the terms: take that of guard_core.
        hits_RP = np.where(targets.minority_RPA, trained_RPA, 0.0).sum(axis=-1)
        return targets._replace(rival_hits_RP=hits_RP)

    def _treat(self, epoch: Epoch, at: slice) -> None:
        records_RP, names = epoch.records_RN[:, at], ("weight", "beta", "skipped", "route")
        own = Treatment(*(records_RP[name] for name in names[:3]))
        problems_RP, deal_RP = epoch.problems_RN[:, at], None
        if epoch.deal_RN is not None:
            deal_RP = np.take_along_axis(epoch.deal_RN, problems_RP, axis=1)
        acting = self._treatments(own, problems_RP, epoch.epoch, deal_RP)
        routes_RP = rerouted(records_RP["route"], acting.skip)
        for name, values in zip(names, (*acting, routes_RP), strict=True):
            records_RP[name] = values


def _drawn(draws: Draws) -> tuple[Floats, Floats, Floats]:
    return draws.tie, draws.skip, draws.pick


class RuleLearner:
    """Decides batch by batch and rewards what a rule rewards."""

    def __init__(self, config: SimConfig, epoch: Epoch, votes: Votes, p_RNA: Floats) -> None:
        """Start from visit 0, as `GuardLearner`; the votes were drawn from `p_RNA`."""
        self._config = config
        self._rule = make_rule(config.rule, config.rule_options)
        self._observer = AnswerObserver(config, self._rule)
        self._fast = fast_rewards(self._rule, config.n_votes)
        self._guard = GuardLearner(config, epoch, votes, self._first_scores(epoch, votes, p_RNA))

    def _first_scores(self, epoch: Epoch, votes: Votes, p_RNA: Floats) -> Floats | None:
        """(R, N, A) scores at visit 0; None where they are the votes."""
        if self._rule.labels_by_votes():
            return None
        scores = []
        for start in range(0, p_RNA.shape[1], _CHUNK):
            of = (p_RNA, votes.counts, votes.samples)
            p_RPA, *both = (np.ascontiguousarray(part[:, start : start + _CHUNK]) for part in of)
            visit = self._visit(
                epoch, start, replace(votes, counts=both[0], samples=both[1]), p_RPA
            )
            scores.append(self._rule.scores(self._observer.see(visit)))
        return np.concatenate(scores, axis=1)

    def step(
        self, epoch: Epoch, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: Floats
    ) -> Update:
        """As `GuardLearner.step`; the drawn samples are trained on."""
        visit = self._visit(epoch, start, votes, p_RPA)
        prior_RPA = self._guard.remembered(visit.problems_RP)
        obs = self._observer.see(visit, prior_RPA, compiled=self._fast is not None)
        scores = None if self._rule.labels_by_votes() else self._rule.scores(obs)
        decision = self._guard.decide(epoch, start, votes, scores)
        if self._config.labels == "truth":
            decision = decision.trained_on(visit.truth_RP)
        if Need.VERDICTS in self._rule.needs:
            obs = replace(obs, verdicts=self._verdicts(visit, obs, decision))
        rewards_RPK = None
        if self._fast is not None:
            rewards_RPK = self._fast(self._rule, self._observer, visit, obs, decision.label)
        return self._update(obs, decision, p_RPA, rewards_RPK)

    def _visit(self, epoch: Epoch, start: int, votes: Votes, p_RPA: Floats) -> ObservedVisit:
        at = slice(start, start + p_RPA.shape[1])
        c = self._config
        batch = (epoch.epoch - 1) * c.n_batches + start // c.batch_size + 1 if epoch.epoch else 0
        problems_RP = np.ascontiguousarray(epoch.problems_RN[:, at])
        truth_RP = np.ascontiguousarray(epoch.truth_RN[:, at])
        return ObservedVisit(epoch.epoch, batch, problems_RP, truth_RP, votes, p_RPA)

    def _verdicts(
        self, visit: ObservedVisit, obs: Observations, decision: Decision
    ) -> NDArray[np.int8]:
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
        if config.mps is not None:
            of = (obs.votes.samples, obs.votes.n_samples)
            minority = minority_advantages(*of, decision, config)
        streams = policy_streams(majority, minority, decision, config)
        streams = weighed(rule, obs, decision.label, streams)
        if not rule.pays_label():
            # Responses of an answer differ in nothing else, so their mean stands for each of them.
            counts_RPB = with_unparseable(obs.votes)
            ids_RPK = obs.trained % counts_RPB.shape[-1]
            total_RPB = sum_by_id(ids_RPK, counts_RPB.shape[-1], streams.majority)
            streams = streams._replace(majority=total_RPB / np.maximum(counts_RPB, 1))
        samples_RPA = obs.votes.samples
        both = streams.majority if config.mps is None else streams.majority + streams.minority
        sums_RPA = samples_RPA * both[..., : samples_RPA.shape[-1]]
        to = (p_RPA, np.ascontiguousarray(streams.weight), np.ascontiguousarray(streams.drop))
        sums_gradient(sums_RPA, obs.votes.n_samples, *to, out_RPA)
        return Update(out_RPA, streams.drop, weighted_streams(streams, self._config))
