"""The guard of a run by guard_core's arrays; `sim.engine.learner` gives the same bits, faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from lab.trace.rows import DECIDED
from sim.engine.gradient import Update, logit_gradient, weighted_streams
from sim.engine.rows import Epoch
from sim.settings.config import SimConfig


class ReferenceGuard:
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._config = config
        self._guard = Guard(config.guard)
        self._state = state

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
        for name, decided in DECIDED.items():
            epoch.records_RN[name][:, at] = getattr(decision, decided)
        epoch.records_RN["n_minority"][:, at] = decision.minority.sum(axis=-1)
        return decision


def gradient(
    votes: Votes, decision: Decision, p_RPA: NDArray[np.float64], config: GuardConfig
) -> NDArray[np.float64]:
    """The guard's decision as a gradient in the logits, see `sim.engine.gradient`.

    Args:
        votes: of the batch.
        decision: of the batch; its label is what is trained on.
        p_RPA: the probabilities that the votes were drawn from.
        config: of the guard.

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
