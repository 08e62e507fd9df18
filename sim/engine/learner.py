"""The compiled guard as the simulation drives it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import Decision, GuardState, Votes
from guard_core.mps import candidate_votes
from guard_core.rcsu import at_high_risk, skip_cap
from lab.trace.rows import DECIDED
from sim.engine.gradient import Update
from sim.engine.kernel import State, count_hits, decide, learn, settings_record
from sim.engine.rows import Epoch
from sim.settings.config import SimConfig


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
        label_RP = np.empty(shape[:2], np.int64)
        hits_RP, rival_hits_RP = np.empty(shape[:2]), np.empty(shape[:2])
        on_truth, truth_RP = config.labels == "truth", epoch.truth_RN[:, at]
        hits = (label_RP, hits_RP, rival_hits_RP)
        count_hits(on_truth, truth_RP, trained_RPA, minority_RPA, records_RP, *hits)
        if config.update == "expected":
            # Sums of fractions depend on the order of the terms: take that of guard_core.
            rival_hits_RP = np.where(minority_RPA, trained_RPA, 0.0).sum(axis=-1)
        return Targets(candidate_votes_RPA, minority_RPA, label_RP, hits_RP, rival_hits_RP)

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
