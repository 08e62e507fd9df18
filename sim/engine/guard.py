"""The compiled guard as the engine drives it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import Draws, GuardState, Votes
from guard_core.arrays import floor_share
from guard_core.mps import candidate_votes
from guard_core.rcsu import skip_cap
from sim.engine.decide import decide
from sim.engine.gradient import Update
from sim.engine.guard_settings import rules
from sim.engine.label import choose_labels
from sim.engine.learn import count_hits, learn
from sim.engine.state import State, fetch
from sim.settings.config import SimConfig


class Settled(NamedTuple):
    """What the guard decided about a batch, as `learn` needs it."""

    counted_RPA: NDArray[np.int64]
    """Responses per answer that minority candidates were chosen by."""
    minority_RPA: NDArray[np.bool_]
    """Minority candidates, what is trained on not among them."""
    label_RP: NDArray[np.int64]
    """What is trained on."""
    hits_RP: NDArray[np.float64]
    """Trained samples that hit it."""
    rival_hits_RP: NDArray[np.float64]
    """Trained samples that hit a minority candidate."""


class CompiledGuard:
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._config = config
        self._rules_1 = rules(config.guard)
        self._state = State.of(state)

    def begin(
        self,
        order_RN: NDArray[np.int64],
        truth_RN: NDArray[np.int32],
        draws: Draws,
        seen_RN: NDArray[np.void],
    ) -> None:
        """See `sim.engine.simulation.Learner`."""
        self._order_RN, self._draws = order_RN, draws
        self._truth_RN, self._seen_RN = truth_RN, seen_RN

    def step(
        self, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: NDArray[np.float64]
    ) -> Update:
        """See `sim.engine.simulation.Learner`."""
        settled = self._settle(start, votes, trained_RPA)
        return self._learn(start, votes, trained_RPA, p_RPA, settled)

    def end(self) -> None:
        """See `sim.engine.simulation.Learner`; the state was changed in place."""

    def _settle(self, start: int, votes: Votes, trained_RPA: NDArray[Any]) -> Settled:
        """Decide, record it, and count who is rewarded."""
        counted_RPA = candidate_votes(votes, self._config.guard)
        minority_RPA = np.empty(trained_RPA.shape, np.bool_)
        self._decide(start, votes, counted_RPA, minority_RPA)
        label_RP = np.empty(trained_RPA.shape[:2], np.int64)
        hits_RP, rival_hits_RP = np.empty(label_RP.shape), np.empty(label_RP.shape)
        count_hits(
            self._config.labels == "truth",
            self._truth_RN,
            trained_RPA,
            minority_RPA,
            self._seen_RN,
            start,
            label_RP,
            hits_RP,
            rival_hits_RP,
        )
        if self._config.update == "expected":
            # Sums of fractions depend on the order of the terms: take that of guard_core.
            rival_hits_RP = np.where(minority_RPA, trained_RPA, 0.0).sum(axis=-1)
        return Settled(counted_RPA, minority_RPA, label_RP, hits_RP, rival_hits_RP)

    def _learn(
        self,
        start: int,
        votes: Votes,
        trained_RPA: NDArray[Any],
        p_RPA: NDArray[np.float64],
        settled: Settled,
    ) -> Update:
        """The gradient of the rewards that go to the label."""
        s = settled
        update = Update(np.empty_like(p_RPA), np.empty(s.label_RP.shape, np.bool_))
        learn(
            self._rules_1,
            trained_RPA,
            votes.n_samples,
            s.hits_RP,
            s.rival_hits_RP,
            s.counted_RPA,
            s.label_RP,
            s.minority_RPA,
            self._seen_RN,
            start,
            p_RPA,
            *update,
        )
        return update

    def _decide(
        self,
        start: int,
        votes: Votes,
        counted_RPA: NDArray[np.int64],
        minority_RPA: NDArray[np.bool_],
    ) -> None:
        """Complete the batch's columns of `seen_RN`, and `minority_RPA`."""
        guard, state, draws = self._config.guard, self._state, self._draws
        histories = (state.flips_RNW, state.match_rates_RNW)
        fetch(state.facts_RN, *histories, self._order_RN, start, start + counted_RPA.shape[1])
        self._choose_labels(start, votes)
        decide(
            self._rules_1,
            state.facts_RN,
            *histories,
            self._order_RN,
            draws.skip,
            draws.pick,
            counted_RPA,
            max(1, floor_share(guard.minority_share, votes.n_samples)),
            skip_cap(counted_RPA.shape[1], guard),
            start,
            self._seen_RN,
            minority_RPA,
        )

    def _choose_labels(self, start: int, votes: Votes) -> None:
        """Write the batch's labels into `seen_RN`."""
        state, draws = self._state, self._draws
        choose_labels(
            self._rules_1,
            state.facts_RN,
            state.memory_RNA,
            self._order_RN,
            draws.tie,
            votes.counts,
            votes.n_votes,
            start,
            self._seen_RN,
        )
