"""The compiled guard as the engine drives it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import Draws, GuardState, Votes
from sim.compiled.decide import Plan, State, decide
from sim.compiled.learn import learn
from sim.compiled.rules import rules
from sim.config import SimConfig
from sim.gradient import Update


class CompiledGuard:
    """Decides batch by batch, see `sim.engine.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._rules_1 = rules(config.guard)
        self._over_samples = config.guard.minority_over == "samples"
        self._on_truth = config.labels == "truth"
        self._sampled = config.update == "sampled"
        self._state = State.of(state)

    def begin(
        self,
        order_RN: NDArray[np.int64],
        truth_RN: NDArray[np.int32],
        draws: Draws,
        seen_RN: NDArray[np.void],
    ) -> None:
        """See `sim.engine.Learner`."""
        self._plan = Plan.of(order_RN, draws)
        self._truth_RN, self._seen_RN = truth_RN, seen_RN

    def step(
        self, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: NDArray[np.float64]
    ) -> Update:
        """See `sim.engine.Learner`."""
        counted_RPA = votes.samples if self._over_samples else votes.counts
        minority_RPA = np.empty(p_RPA.shape, np.bool_)
        decide(
            self._rules_1,
            *self._state,
            *self._plan,
            votes.counts,
            counted_RPA,
            votes.n_votes,
            votes.n_samples,
            start,
            self._seen_RN,
            minority_RPA,
        )
        update = Update(np.empty_like(p_RPA), np.empty(p_RPA.shape[:2], np.bool_))
        learn(
            self._rules_1,
            self._on_truth,
            self._truth_RN,
            trained_RPA,
            votes.n_samples,
            self._sampled,
            counted_RPA,
            minority_RPA,
            self._seen_RN,
            start,
            p_RPA,
            update.gradient_RPA,
            update.drop_RP,
        )
        return update

    def end(self) -> None:
        """See `sim.engine.Learner`; the state was changed in place."""
