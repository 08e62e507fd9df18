"""The guard: a state per problem, and the decisions on a batch (paper section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guard_core.checks import check_batch, check_state
from guard_core.config import GuardConfig, Settings, settings
from guard_core.decision import DECIDED, Decision
from guard_core.machine_code import road
from guard_core.rcsu import at_high_risk, skip_cap
from guard_core.state import GuardState
from guard_core.visit import PROBLEM, VISIT, Rows
from guard_core.votes import Array, Draws, Votes, as_array, widen


@dataclass(frozen=True, slots=True)
class Guard:
    """TTRL-Guard's per-problem monitor and its three interventions (paper section 3).

    `init` makes a state, `step` maps a state and an observation to a new state and a decision.
    Nothing is hidden and nothing random happens inside.
    """

    config: GuardConfig

    def init(
        self, n_problems: int, *, leading: tuple[int, ...] = (), n_answers: int = 0
    ) -> GuardState:
        """The state before any visit.

        Args:
            leading: leading axes, such as replicates.
            n_answers: A, if known; saves the vote memory from growing.
        """
        if n_problems < 1:
            raise ValueError(f"n_problems = {n_problems}: must be at least 1")
        return GuardState.empty((*leading, n_problems), self.config, n_answers)

    def prime(
        self, state: GuardState, votes: Votes, draws: Draws, scores: Array | None = None
    ) -> GuardState:
        """Take in visit 0, the votes of all N problems before training (docs/method.md, section 2).

        It sets label and memory, and is neither a visit nor a flip. Of the draws `tie` is read.
        """
        call = _Call(self.config, state, votes, scores, tie=draws.tie)
        (tie,), settings_1 = call.draws, call.road.settings(call.s)
        call.law.prime_batches(settings_1, call.memory, tie, call.scores, call.counts, call.visits)
        new = call.state()
        return replace(state, label=new.label, memory=new.memory)

    def step(
        self, rows: GuardState, votes: Votes, draws: Draws, scores: Array | None = None
    ) -> tuple[GuardState, Decision]:
        """Record one visit of every row and decide on it (docs/method.md, sections 2 to 7).

        Args:
            rows: `state.take(problems)`, (..., P).
            scores: (..., P, A) at least 0; what the label has most of, and what a memory sums,
                where a rule of `guard_core.rules` has another choice than the votes themselves.
                Match rates are shares of the votes in any case.

        Raises:
            ValueError: shapes do not fit, or the state was made by other settings.
        """
        drawn = {"tie": draws.tie, "skip": draws.skip, "pick": draws.pick}
        call = _Call(self.config, rows, votes, scores, **drawn)
        candidates = call.votes.samples if call.s.minority_over_samples else call.votes.counts
        order = np.empty(rows.label.shape, np.int64)
        order[...] = np.arange(order.shape[-1])
        minority = call.rows(np.empty(candidates.shape, np.bool_))
        call.law.visit_batches(
            call.road.settings(call.s),
            call.memory,
            call.draws,
            call.rows(order),
            call.scores,
            call.counts,
            skip_cap(order.shape[-1], self.config),
            call.rows(candidates),
            minority,
            call.road.rows(np.empty(order.shape[-1])),
            call.visits,
        )
        new = call.state()
        seen = call.road.records(call.visits, VISIT).reshape(order.shape)
        minority = np.asarray(minority, np.bool_).reshape(candidates.shape)
        overrides = {"label": new.label, "route": seen["route"].astype(np.int8)}
        return new, decision_of(call.s, seen, new.visits, minority, candidates, **overrides)

    def remembered(self, rows: GuardState) -> Array | None:
        """(..., P, A) memory times `discount`, before `step`; None where labels do not remember."""
        if self.config.labels.label_from != "memory":
            return None
        return self.config.labels.discount * rows.memory


class _Call:
    """What the law takes in one call, in the containers of its road, with all leading axes as one.

    Votes, scores and memory are padded to one width of at least one answer; the law changes copies.
    """

    def __init__(
        self, config: GuardConfig, rows: GuardState, votes: Votes, scores: Any, **draws: Array
    ) -> None:
        scores = None if scores is None else as_array(scores, "scores")
        check_state(rows, config)
        check_batch(rows.label.shape, votes, scores, **draws)
        self._columns, scored = rows.columns(), votes.counts if scores is None else scores
        width = max(1, scored.shape[-1], votes.counts.shape[-1], rows.memory.shape[-1])
        self.votes, self.s = votes.wide(width), settings(config, votes.n_votes, votes.n_samples)
        if self.s.label_from_memory:
            self._columns["memory"] = widen(rows.memory, width)
        *leading, n_batch = self._shape = rows.label.shape
        self._n_batches = math.prod(leading)
        self.road, self.law = road(self._n_batches * n_batch)
        self.memory = self.road.memory({name: self._flat(a) for name, a in self._columns.items()})
        self.draws = tuple(self.rows(array) for array in draws.values())
        self.scores, self.counts = self.rows(widen(scored, width)), self.rows(self.votes.counts)
        self.visits = self.road.visits(self._n_batches, n_batch)

    def _flat(self, array: Array) -> Array:
        if len(self._shape) == 1:
            return array[None]  # a quarter of the time of `reshape`, which small batches wait for
        return array.reshape(self._n_batches, *array.shape[len(self._shape) - 1 :])

    def rows(self, array: Array) -> Rows:
        """(B, P, ...) an array of the rows of a state, in the road's containers."""
        return self.road.rows(self._flat(array))

    def state(self) -> GuardState:
        """Return the rows after the call."""
        problems, flips, match_rates, votes = self.memory
        problems = self.road.records(problems, PROBLEM)
        columns = {name: problems[name] for name in PROBLEM.names or ()}
        columns |= {"flips": flips, "match_rates": match_rates, "memory": votes}
        kept = self._columns.items()
        new = {name: np.asarray(columns[name], a.dtype).reshape(a.shape) for name, a in kept}
        return GuardState(**new)


def decision_of(
    s: Settings, seen: Any, visits: Array, minority: Array, votes: Array, **overrides: Array
) -> Decision:
    """Return a decision from the fields of `VISIT` and `overrides`; `votes` are candidates'."""
    return Decision(
        **{field: seen[name] for name, field in DECIDED.items()} | overrides,
        visits=visits,
        high_risk=at_high_risk(s, seen["had_competition"], visits, seen["mean_match_rate"]),
        minority=minority,
        candidate_votes=votes,
    )
