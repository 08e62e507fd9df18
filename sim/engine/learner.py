"""The learner: from a batch's votes to the guard's decisions, a rule's rewards, and the update.

A batch goes observe -> decide -> reward -> gradient. The guard decides in compiled code; the rule,
plain TTRL among them, runs on arrays whose leading axis is the replicates. Epochs of plain TTRL are
made whole in compiled code, see `sim.engine.kernel`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from guard_core import Decision, Guard, Votes, policy_streams
from guard_core.advantages import minority_advantages
from guard_core.config import settings
from guard_core.decision import DECIDED, Treatment
from guard_core.guard import decision_of
from guard_core.machine_code import memory_of, records_of
from guard_core.rcsu import skip_cap
from guard_core.rules import Need, Observations, make_rule, rule_advantages, scored, weighed
from guard_core.schedule import brake_factor, signal
from guard_core.votes import Array, sum_by_id
from lab.arm_settings import Treatments
from lab.base.arms import OWN
from sim.engine.kernel import Batch, Plain, decide, prime, sharpen
from sim.engine.rows import Epoch
from sim.settings.config import SimConfig
from sim.world.observe import AnswerObserver, ObservedVisit, with_unparseable
from sim.world.policies import Directions, Update
from sim.world.sampling import Bools, Floats, Ints


class Learner:
    """Decides batch by batch and rewards what a rule rewards."""

    def __init__(
        self, config: SimConfig, treatments: Treatments, epoch: Epoch, votes: Votes, p_RNA: Floats
    ) -> None:
        """Start from visit 0, whose labels are written to the records of `epoch`.

        Args:
            p_RNA: the probabilities that the votes were drawn from.
        """
        self._config, self._treatments = config, treatments
        self._settings = settings(config.guard, config.n_votes, config.n_samples)
        self._settings_1 = records_of(self._settings)
        state = Guard(config.guard).init(
            config.n_problems, leading=(config.replicates,), n_answers=config.n_answers
        )
        self._memory = memory_of(state.columns())
        self._rule = make_rule(config.rule, config.rule_options)
        self._observer = AnswerObserver(config, self._rule)
        scores_RNA = self._first_scores(epoch, votes, p_RNA)
        tie_RN, records_RN = epoch.tie_RN, epoch.records_RN
        prime(self._settings_1, self._memory, tie_RN, scores_RNA, votes.counts, records_RN)

    def _first_scores(self, epoch: Epoch, votes: Votes, p_RNA: Floats) -> Array:
        """(R, N, A) what labels are chosen by at visit 0."""
        if self._rule.labels_by_votes() and Need.TEACHER not in self._rule.needs:
            return votes.counts
        scores, size = [], self._config.batch_size
        for start in range(0, p_RNA.shape[1], size):  # bounds the memory as later visits do
            at = slice(start, start + size)
            part = replace(votes, counts=votes.counts[:, at], samples=votes.samples[:, at])
            visit = self._visit(epoch, start, part, np.ascontiguousarray(p_RNA[:, at]))
            seen = self._observer.see(visit, self._remembered(visit.problems_RP))
            scores.append(scored(self._rule, seen))
        return np.concatenate(scores, axis=1)

    def plain(self, policy: Directions, right_RN: Floats) -> Plain:
        """Return what epochs of plain visits share, with the guard's memory."""
        c, size = self._config, self._config.batch_size
        return Plain(
            seed=c.seed,
            first=c.first_replicate,
            parseable=1.0 - c.unparseable,
            on_truth=c.labels == "truth",
            settings_1=self._settings_1,
            batches=(Batch.of_size(size, c), Batch.of_size(c.n_problems % size or size, c)),
            memory=self._memory,
            policy=policy,
            right_RN=right_RN,
        )

    def step(self, epoch: Epoch, start: int, votes: Votes, p_RPA: Floats) -> Update:
        """Decide on one batch, write it to the epoch's records, and return the update.

        Args:
            start: place of the batch's first visit in the epoch.
            p_RPA: the probabilities that the votes were drawn from.
        """
        c, rule = self._config, self._rule
        visit = self._visit(epoch, start, votes, p_RPA)
        obs = self._observer.see(visit, self._remembered(visit.problems_RP))
        decision = self._decide(epoch, start, votes, scored(rule, obs))
        if c.labels == "truth":
            decision = decision.trained_on(visit.truth_RP)
        if Need.VERDICTS in rule.needs:
            asked_RPQ = rule.questions(obs, decision.label)
            answers_RPQ = np.take_along_axis(obs.of("answers"), np.maximum(asked_RPQ, 0), axis=-1)
            answers_RPQ = np.where(asked_RPQ < 0, -2, answers_RPQ)
            obs = replace(obs, verdicts=self._observer.verdicts(visit, answers_RPQ))
        if c.update == "expected":
            samples_RPA = expected_samples(p_RPA, 1.0 - c.unparseable, c.n_samples)
            obs = replace(obs, votes=replace(votes, samples=samples_RPA))
        return self._update(obs, decision, p_RPA)

    def brake_factor(self) -> Floats:
        """(R,) factors on the rest of the run's learning rate, by the latest visits."""
        guard, memory = self._config.guard, self._memory
        visited = memory.problems["visits"] > 0
        latest = signal(memory.flips[..., -1], memory.match_rates[..., -1], visited, guard)
        return brake_factor(latest, guard)

    def _remembered(self, problems_RP: Ints) -> Floats | None:
        """(R, P, A) scores of earlier visits, as of `guard_core.Guard.remembered`."""
        if not self._settings.label_from_memory:
            return None
        memory_RPA = np.take_along_axis(self._memory.votes, problems_RP[..., None], axis=1)
        return self._settings.discount * memory_RPA

    def _visit(self, epoch: Epoch, start: int, votes: Votes, p_RPA: Floats) -> ObservedVisit:
        at = slice(start, start + p_RPA.shape[1])
        c = self._config
        batch = (epoch.epoch - 1) * c.n_batches + start // c.batch_size + 1 if epoch.epoch else 0
        problems_RP = np.ascontiguousarray(epoch.problems_RN[:, at])
        truth_RP = np.ascontiguousarray(epoch.truth_RN[:, at])
        return ObservedVisit(epoch.epoch, batch, problems_RP, truth_RP, votes, p_RPA)

    def _decide(self, epoch: Epoch, start: int, votes: Votes, scores_RPA: Array) -> Decision:
        """Decide by these scores, record it and return it; its label is the guard's own."""
        c, at = self._config, slice(start, start + votes.counts.shape[1])
        records_RP, problems_RP = epoch.records_RN[:, at], epoch.problems_RN[:, at]
        candidates = votes.samples if self._settings.minority_over_samples else votes.counts
        minority_RPA = np.empty(candidates.shape, np.bool_)
        decide(
            self._settings_1,
            self._memory,
            (epoch.tie_RN, epoch.skip_RN, epoch.pick_RN),
            problems_RP,
            scores_RPA,
            votes.counts,
            skip_cap(records_RP.shape[1], c.guard),
            candidates,
            minority_RPA,
            np.empty(records_RP.shape[1]),
            records_RP,
        )
        seen = {name: records_RP[name].copy() for name in DECIDED}
        visits_RP = np.take_along_axis(self._memory.problems["visits"], problems_RP, axis=1)
        decision = decision_of(self._settings, seen, visits_RP, minority_RPA, candidates)
        if c.treatment != OWN:
            deal_RN = epoch.deal_RN
            deal_RP = None if deal_RN is None else np.take_along_axis(deal_RN, problems_RP, 1)
            acting = self._treatments(Treatment.of(decision), problems_RP, epoch.epoch, deal_RP)
            decision = decision.treated(*acting, c.guard.rates.tau_FR)
        if c.skip_rate:
            out_RP = np.take_along_axis(epoch.skip_RN, problems_RP, 1) < c.skip_rate
            acting = Treatment.of(decision)._replace(skip=decision.skip | out_RP)
            decision = decision.treated(*acting, c.guard.rates.tau_FR)
        for name in ("weight", "beta", "skipped", "route"):
            records_RP[name] = getattr(decision, DECIDED[name])
        return decision

    def _update(self, obs: Observations, decision: Decision, p_RPA: Floats) -> Update:
        rule, config = self._rule, self._config.guard
        if rule.loss == "entropy":
            out_RPA = np.empty_like(p_RPA)
            sharpen(p_RPA, out_RPA)
            out_RPA[decision.skip] = 0.0
            return Update(out_RPA, decision.skip & (config.advantages.skip_by == "drop"))
        majority = rule_advantages(rule, obs, decision, config)
        minority = np.zeros(1)
        if config.mps is not None:
            minority = minority_advantages(obs.votes.samples, obs.votes.n_samples, decision, config)
        streams = policy_streams(majority, minority, decision, config)
        streams = weighed(rule, obs, decision.label, streams)
        if not rule.pays_label():
            # Responses of an answer differ in nothing else, so their mean stands for each of them.
            counts_RPB = with_unparseable(obs.votes.samples, obs.votes.n_samples)
            ids_RPK = obs.trained % counts_RPB.shape[-1]
            total_RPB = sum_by_id(ids_RPK, counts_RPB.shape[-1], streams.majority)
            streams = streams._replace(majority=total_RPB / np.maximum(counts_RPB, 1))
        samples_RPA = obs.votes.samples
        both = streams.majority if config.mps is None else streams.majority + streams.minority
        sums_RPA = samples_RPA * both[..., : samples_RPA.shape[-1]]
        weight_RP = streams.weight / obs.votes.n_samples
        gradient_RPA = sums_gradient(sums_RPA, p_RPA, weight_RP, streams.drop)
        streams_RSPB = None
        if self._config.policy == "measured":
            pair = np.broadcast_arrays(streams.majority, streams.minority)
            streams_RSPB = np.stack(pair, axis=1) * streams.weight[:, None, :, None]
        return Update(gradient_RPA, streams.drop, streams_RSPB)


def sums_gradient(sums_RPA: Floats, p_RPA: Floats, weight_RP: Floats, drop_RP: Bools) -> Floats:
    """(R, P, A) weighted gradients of a batch, 0 where a problem is dropped."""
    total_RP1 = np.cumsum(sums_RPA, axis=-1)[..., -1:]  # from left to right, as in compiled code
    return np.where(drop_RP, 0.0, weight_RP)[..., None] * (sums_RPA - p_RPA * total_RP1)


_BELOW_ONE = 1.0 - 1e-12
"""Keeps the sum over any set of answers below K in spite of rounding: it goes under a root."""


def expected_samples(p_RPA: Array, parseable: float, n_samples: int) -> Array:
    """(R, P, A) mean counts of the answers among K fresh samples; they need not be whole."""
    return (_BELOW_ONE * parseable * n_samples) * p_RPA
