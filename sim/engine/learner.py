"""The guard of a run: by guard_core's arrays, or compiled, which gives the same bits, faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import (
    Decision,
    Draws,
    Guard,
    GuardConfig,
    GuardState,
    PolicyStreams,
    Votes,
    answer_advantages,
    policy_streams,
)
from guard_core.decision import Treatment, rerouted
from guard_core.guard import at_high_risk, candidate_votes, skip_cap
from lab.arm_settings import Treatments
from lab.base.arms import OWN
from lab.trace.rows import DECIDED
from sim.engine.kernel import (
    State,
    Update,
    count_hits,
    decide,
    learn,
    logit_gradient,
    settings_record,
    weighted_streams,
)
from sim.engine.rows import Epoch
from sim.settings.config import SimConfig


class BatchTreatments:
    """Replaces the treatments of a batch by those that act."""

    def __init__(self, config: SimConfig) -> None:
        """Read the decisions to replay, if any.

        Raises:
            UserError: there are none for this run.
        """
        numbers = range(config.first_replicate, config.first_replicate + config.replicates)
        shape = config.epochs, config.n_problems
        self.own = config.treatment == OWN
        self._treatments = Treatments(config.treatment, config.seed, numbers, shape)

    def of(self, own: Treatment, epoch: Epoch, at: slice) -> Treatment:
        """Return what acts on a batch.

        Args:
            own: (R, P), as the guard decided.
        """
        problems_RP, deal_RP = epoch.problems_RN[:, at], None
        if epoch.deal_RN is not None:
            deal_RP = np.take_along_axis(epoch.deal_RN, problems_RP, axis=1)
        return self._treatments(own, problems_RP, epoch.epoch, deal_RP)


class ReferenceGuard:
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._config = config
        self._guard = Guard(config.guard)
        self._state = state
        self._treatments = BatchTreatments(config)

    def step(
        self,
        epoch: Epoch,
        start: int,
        votes: Votes,
        trained_RPA: NDArray[Any],
        p_RPA: NDArray[np.float64],
    ) -> Update:
        """Implement `sim.engine.simulation.Learner`."""
        decision = self.decide(epoch, start, votes, None)
        if self._config.labels == "truth":
            decision = decision.trained_on(epoch.truth_RN[:, start : start + p_RPA.shape[1]])
        trained = replace(votes, samples=trained_RPA)
        config = self._config.guard
        streams = _streams(trained, decision, config)
        gradient_RPA = _gradient(trained, streams, p_RPA)
        return Update(gradient_RPA, streams.drop, weighted_streams(streams, self._config))

    def remembered(self, problems_RP: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Implement `sim.engine.rule_engine.DecidingGuard`."""
        return self._guard.remembered(self._state.take(problems_RP))

    def decide(
        self, epoch: Epoch, start: int, votes: Votes, scores_RPA: NDArray[np.float64] | None
    ) -> Decision:
        """Implement `sim.engine.rule_engine.DecidingGuard`."""
        at = slice(start, start + votes.counts.shape[1])
        problems_RP, all_draws = epoch.problems_RN[:, at], epoch.draws
        draws = Draws(
            *(
                np.take_along_axis(of_problems, problems_RP, axis=1)
                for of_problems in (all_draws.tie, all_draws.skip, all_draws.pick)
            )
        )
        rows = self._state.take(problems_RP)
        rows, decision = self._guard.step(rows, votes, draws, scores_RPA)
        self._state = self._state.put(problems_RP, rows)
        decision = decision.treated(*self._treatments.of(Treatment.of(decision), epoch, at))
        for name, decided in DECIDED.items():
            epoch.records_RN[name][:, at] = getattr(decision, decided)
        epoch.records_RN["n_minority"][:, at] = decision.minority.sum(axis=-1)
        return decision


def gradient(
    votes: Votes, decision: Decision, p_RPA: NDArray[np.float64], config: GuardConfig
) -> NDArray[np.float64]:
    """The guard's decision as a gradient in the logits, see `sim.engine.kernel`.

    Args:
        decision: of the batch; its label is what is trained on.
        p_RPA: the probabilities that the votes were drawn from.

    Returns:
        (R, P, A).
    """
    return _gradient(votes, _streams(votes, decision, config), p_RPA)


def _streams(votes: Votes, decision: Decision, config: GuardConfig) -> PolicyStreams:
    pair = answer_advantages(votes.samples, votes.n_samples, decision, config)
    return policy_streams(*pair, decision, config)


def _gradient(
    votes: Votes, streams: PolicyStreams, p_RPA: NDArray[np.float64]
) -> NDArray[np.float64]:
    out_RPA = np.empty_like(p_RPA)
    logit_gradient(
        votes.samples,
        votes.n_samples,
        p_RPA,
        np.ascontiguousarray(streams.majority),
        np.ascontiguousarray(streams.minority),
        np.ascontiguousarray(streams.weight),
        np.ascontiguousarray(streams.drop),
        out_RPA,
    )
    return out_RPA


class Targets(NamedTuple):
    """The answers of a batch that are trained on, as `learn` needs them."""

    candidate_votes_RPA: NDArray[np.int64]
    """Responses per answer that minority candidates were chosen by."""
    minority_RPA: NDArray[np.bool_]
    """Minority candidates, without the label."""
    label_RP: NDArray[np.int64]
    """The answer that is trained on, -1 for none."""
    hits_RP: NDArray[np.float64]
    """Trained samples that hit it."""
    rival_hits_RP: NDArray[np.float64]
    """Trained samples that hit a minority candidate."""


class CompiledGuard:
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._config = config
        self._settings_1 = settings_record(config.guard, config.n_votes, config.n_samples)
        self._state = State.of(state)
        self._treatments = BatchTreatments(config)

    def step(
        self,
        epoch: Epoch,
        start: int,
        votes: Votes,
        trained_RPA: NDArray[Any],
        p_RPA: NDArray[np.float64],
    ) -> Update:
        """Implement `sim.engine.simulation.Learner`."""
        at = slice(start, start + p_RPA.shape[1])
        targets = self._decide(epoch, at, votes, trained_RPA, None)
        return self._learn(epoch.records_RN[:, at], trained_RPA, p_RPA, targets)

    def remembered(self, problems_RP: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Implement `sim.engine.rule_engine.DecidingGuard`."""
        if self._config.guard.label_from != "memory":
            return None
        memory_RPA = np.take_along_axis(self._state.memory_RNA, problems_RP[..., None], axis=1)
        return self._config.guard.discount * memory_RPA

    def decide(
        self, epoch: Epoch, start: int, votes: Votes, scores_RPA: NDArray[np.float64] | None
    ) -> Decision:
        """Implement `sim.engine.rule_engine.DecidingGuard`."""
        at = slice(start, start + votes.counts.shape[1])
        targets = self._decide(epoch, at, votes, votes.samples, scores_RPA)
        decided = {field: epoch.records_RN[name][:, at].copy() for name, field in DECIDED.items()}
        visits_RN = self._state.problems_RN["visits"]
        visits_RP = np.take_along_axis(visits_RN, epoch.problems_RN[:, at], axis=1)
        rates = (decided["had_competition"], visits_RP, decided["mean_match_rate"])
        return Decision(
            **decided,
            visits=visits_RP,
            high_risk=at_high_risk(*rates, self._config.guard),
            minority=targets.minority_RPA,
            candidate_votes=targets.candidate_votes_RPA,
        )

    def _decide(
        self,
        epoch: Epoch,
        at: slice,
        votes: Votes,
        trained_RPA: NDArray[Any],
        scores_RPA: NDArray[np.float64] | None,
    ) -> Targets:
        """Decide, record it, and count who is rewarded; the scores are a rule's, if it has any."""
        config, draws, records_RP = self._config, epoch.draws, epoch.records_RN[:, at]
        shape = trained_RPA.shape
        candidate_votes_RPA = candidate_votes(votes, config.guard)
        minority_RPA = np.empty(shape, np.bool_)
        decide(
            self._settings_1,
            *self._state,
            draws.tie,
            draws.skip,
            draws.pick,
            epoch.problems_RN[:, at],
            votes.counts if scores_RPA is None else scores_RPA,
            votes.counts,
            candidate_votes_RPA,
            skip_cap(shape[1], config.guard),
            np.empty(shape[1]),
            minority_RPA,
            records_RP,
        )
        if not self._treatments.own:
            self._treat(epoch, at)
        label_RP = np.empty(shape[:2], np.int64)
        hits_RP, rival_hits_RP = np.empty(shape[:2]), np.empty(shape[:2])
        on_truth, truth_RP = config.labels == "truth", epoch.truth_RN[:, at]
        hits = (label_RP, hits_RP, rival_hits_RP)
        count_hits(on_truth, truth_RP, trained_RPA, minority_RPA, records_RP, *hits)
        if config.update == "expected":
            # Sums of fractions depend on the order of the terms: take that of guard_core.
            rival_hits_RP = np.where(minority_RPA, trained_RPA, 0.0).sum(axis=-1)
        return Targets(candidate_votes_RPA, minority_RPA, label_RP, hits_RP, rival_hits_RP)

    def _treat(self, epoch: Epoch, at: slice) -> None:
        """Write the treatment that acts into the records of a batch."""
        records_RP, names = epoch.records_RN[:, at], ("weight", "beta", "skipped", "route")
        own = Treatment(*(records_RP[name] for name in names[:3]))
        acting = self._treatments.of(own, epoch, at)
        routes_RP = rerouted(records_RP["route"], acting.skip)
        for name, values in zip(names, (*acting, routes_RP), strict=True):
            records_RP[name] = values

    def _learn(
        self,
        records_RP: NDArray[np.void],
        trained_RPA: NDArray[Any],
        p_RPA: NDArray[np.float64],
        targets: Targets,
    ) -> Update:
        """Return the gradient of the rewards that go to the label."""
        update = Update(np.empty_like(p_RPA), np.empty(p_RPA.shape[:2], np.bool_))
        out = (update.gradient_RPA, update.drop_RP)
        learn(self._settings_1, trained_RPA, *targets, records_RP, p_RPA, *out)
        return update
