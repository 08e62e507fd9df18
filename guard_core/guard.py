"""The guard: a state per problem, and the decisions on a batch (paper section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guard_core.checks import check_batch, check_state
from guard_core.config import GuardConfig, Settings, settings
from guard_core.decision import Decision
from guard_core.machine_code import containers
from guard_core.mps import candidate_votes
from guard_core.rcsu import at_high_risk, skip_cap
from guard_core.state import GuardState
from guard_core.visit import Memory, ProblemState, Rows, VisitRecord
from guard_core.votes import Array, Draws, Votes, as_array, widen


@dataclass(frozen=True, slots=True)
class Guard:
    """TTRL-Guard's per-problem monitor and its three interventions (paper section 3).

    `init` makes a state, `step` maps a state and an observation to a new state and a decision.
    Nothing is hidden and nothing random happens inside.
    """

    config: GuardConfig

    def init(
        self,
        n_problems: int,
        *,
        leading: tuple[int, ...] = (),
        n_answers: int = 0,
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
        run, (votes, scores, memory) = (
            _road(state),
            self._widened(state, votes, scores, tie=draws.tie),
        )
        held, visits = _held(run, replace(state, memory=memory))
        given = (_rows(run, a, state) for a in (draws.tie, scores, votes.counts))
        run.prime(run.settings(self.config, votes.n_votes, votes.n_samples), held, *given, visits)
        label = _array(run.column(held.problems, "label"), state.label)
        return replace(state, label=label, memory=_array(held.votes, memory))

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
        c, run = self.config, _road(rows)
        s = settings(c, votes.n_votes, votes.n_samples)
        drawn = {"tie": draws.tie, "skip": draws.skip, "pick": draws.pick}
        votes, scores, memory = self._widened(rows, votes, scores, **drawn)
        old, n_batch = replace(rows, memory=memory), rows.label.shape[-1]
        candidates = candidate_votes(votes, s.minority_over_samples)
        held, visits = _held(run, old)
        minority = _rows(run, np.zeros(candidates.shape, np.bool_), rows)
        run.visit(
            run.settings(c, votes.n_votes, votes.n_samples),
            held,
            tuple(_rows(run, a, rows) for a in drawn.values()),
            _rows(run, np.broadcast_to(np.arange(n_batch), rows.label.shape), rows),
            *(_rows(run, a, rows) for a in (scores, votes.counts)),
            skip_cap(n_batch, c),
            _rows(run, candidates, rows),
            minority,
            run.rows(np.zeros(n_batch)),
            visits,
        )
        columns = {n: run.column(held.problems, n) for n in ProblemState.__slots__}
        columns |= {"flips": held.flips, "match_rates": held.match_rates, "memory": held.votes}
        new = GuardState(**{n: _array(column, getattr(old, n)) for n, column in columns.items()})
        seen = {n: run.column(visits, n) for n in VisitRecord.__slots__}
        return new, _decision(s, new, seen, minority, candidates)

    def remembered(self, rows: GuardState) -> Array | None:
        """(..., P, A) memory times `discount`, before `step`; None where labels do not remember."""
        if self.config.labels.label_from != "memory":
            return None
        return self.config.labels.discount * rows.memory

    def _widened(
        self, rows: GuardState, votes: Votes, scores: Array | None, **draws: Array
    ) -> tuple[Votes, Array, Array]:
        """Check a batch; pad votes, scores and memory to one width of at least one answer."""
        scores = None if scores is None else as_array(scores, "scores")
        check_state(rows, self.config)
        check_batch(rows.label.shape, votes, scores, **draws)
        width = max(1, votes.counts.shape[-1], rows.memory.shape[-1])
        votes = votes.wide(width)
        scores = votes.counts if scores is None else widen(scores, width)
        remembers = self.config.labels.label_from == "memory"
        return votes, scores, widen(rows.memory, width) if remembers else rows.memory


Road = Any
"""`Arrays` or `Lists`, which have the same functions."""


def _road(rows: GuardState) -> Road:
    return containers(rows.label.size)


def _rows(run: Road, array: Array, like: GuardState) -> Rows:
    """(B, P, ...) an array of the rows of a state, in the road's containers."""
    leading = like.label.ndim
    shape = (math.prod(array.shape[: leading - 1]), *array.shape[leading - 1 :])
    return run.rows(array.reshape(shape))


def _held(run: Road, rows: GuardState) -> tuple[Memory, Rows]:
    """Return a copy of a state and room for a visit of each row."""
    *leading, n_batch = rows.label.shape
    n_batches, depth = math.prod(leading), len(leading)
    arrays = (getattr(rows, name) for name in GuardState.__slots__)
    flat = GuardState(*(array.reshape(n_batches, *array.shape[depth:]) for array in arrays))
    return run.memory(flat), run.visits(n_batches, n_batch)


def _array(values: Any, like: Array) -> Array:
    return np.array(values, like.dtype).reshape(like.shape)


def _decision(
    s: Settings, rows: GuardState, seen: dict[str, Any], minority: Rows, candidates: Array
) -> Decision:
    def of(name: str, dtype: type[np.generic] = np.float64) -> Array:
        return np.array(seen[name], dtype).reshape(rows.label.shape)

    mean_match_rate = of("mean_match_rate")
    return Decision(
        label=rows.label,
        flipped=of("flipped", np.bool_),
        tied=of("tie", np.bool_),
        visits=rows.visits,
        match_rate=of("match_rate"),
        flip_rate=of("flip_rate"),
        mean_match_rate=mean_match_rate,
        had_competition=rows.had_competition,
        weight=of("weight"),
        beta=of("beta"),
        high_risk=at_high_risk(s, rows.had_competition, rows.visits, mean_match_rate),
        skip=of("skipped", np.bool_),
        route=of("route", np.int8),
        minority=np.array(minority, np.bool_).reshape(candidates.shape),
        candidate_votes=candidates,
    )
