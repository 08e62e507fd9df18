"""The guard of a run by guard_core's arrays; `sim.engine.learner` gives the same bits, faster."""

from __future__ import annotations

from dataclasses import fields, replace
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
from sim.settings.config import SimConfig

_FIELDS = tuple(f.name for f in fields(GuardState))


class ReferenceGuard:
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState) -> None:
        """Start from a primed state."""
        self._config = config
        self._guard = Guard(config.guard)
        self._state = state

    def begin(
        self,
        order_RN: NDArray[np.int64],
        truth_RN: NDArray[np.int32],
        draws: Draws,
        seen_RN: NDArray[np.void],
    ) -> None:
        """Implement `sim.engine.simulation.Learner`."""
        along = (
            np.take_along_axis(d, order_RN, axis=1) for d in (draws.tie, draws.skip, draws.pick)
        )
        self._draws = Draws(*along)
        self._order_RN, self._truth_RN, self._seen_RN = order_RN, truth_RN, seen_RN
        self._rows = self._state.take(order_RN)
        self._done: list[GuardState] = []

    def step(
        self, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: NDArray[np.float64]
    ) -> Update:
        """Implement `sim.engine.simulation.Learner`."""
        decision = self.decide(start, votes, None)
        if self._config.labels == "truth":
            decision = decision.trained_on(self._truth_RN[:, start : start + p_RPA.shape[1]])
        trained = replace(votes, samples=trained_RPA)
        config = self._config.guard
        streams = _streams(trained, decision, config)
        gradient_RPA = _gradient(trained, streams, p_RPA)
        return Update(gradient_RPA, streams.drop, weighted_streams(streams, self._config))

    def remembered(self, start: int, n_problems: int) -> NDArray[np.float64] | None:
        """Return the scores of earlier visits, see `guard_core.Guard.remembered`."""
        rows, _ = self._batch(slice(start, start + n_problems))
        return self._guard.remembered(rows)

    def decide(self, start: int, votes: Votes, scores_RPA: NDArray[np.float64] | None) -> Decision:
        """Record the guard's decision about a batch and return it.

        Args:
            start: place of the batch's first visit in the epoch.
            votes: of the batch.
            scores_RPA: of a rule; None for the votes.
        """
        at = slice(start, start + votes.counts.shape[1])
        rows, draws = self._batch(at)
        rows, decision = self._guard.step(rows, votes, draws, scores_RPA)
        self._done.append(rows)
        for name, decided in DECIDED.items():
            self._seen_RN[name][:, at] = getattr(decision, decided)
        self._seen_RN["n_minority"][:, at] = decision.minority.sum(axis=-1)
        return decision

    def _batch(self, at: slice) -> tuple[GuardState, Draws]:
        """The batch's rows in visiting order and its draws: views, where `take` would copy."""
        rows = GuardState(*(getattr(self._rows, name)[:, at] for name in _FIELDS))
        draws = Draws(self._draws.tie[:, at], self._draws.skip[:, at], self._draws.pick[:, at])
        return rows, draws

    def end(self) -> None:
        """Implement `sim.engine.simulation.Learner`."""
        joined = (np.concatenate([getattr(s, name) for s in self._done], 1) for name in _FIELDS)
        self._state = self._state.put(self._order_RN, GuardState(*joined))


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
