"""The guard: what it records of a visit and decides on it (paper section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guard_core.config import GuardConfig, Numbers, Settings, settings
from guard_core.decision import Decision
from guard_core.frs import push, weigh, weigh_support
from guard_core.labels import choose_label, remember
from guard_core.mps import candidate_votes, find_minority, protect
from guard_core.rcsu import (
    AT_RISK,
    HIGH_RISK,
    STABLE,
    at_high_risk,
    choose_skips,
    skip_cap,
    skip_key,
)
from guard_core.state import GuardState
from guard_core.votes import Array, Draws, Votes, widen


@dataclass(slots=True)
class ProblemState:
    """The fields of `GuardState` that are one number, of one problem."""

    label: int
    visits: int
    had_competition: bool
    c2_fired: int
    mps_active: bool
    steady: int


@dataclass(slots=True)
class VisitRecord:
    """What a visit of one problem came to; the fields are columns of `lab.trace.schema`."""

    label: int = -1
    flipped: bool = False
    match_rate: float = 0.0
    flip_rate: float = 0.0
    mean_match_rate: float = 0.0
    had_competition: bool = False
    weight: float = 1.0
    n_minority: int = 0
    beta: float = 0.0
    route: int = STABLE
    skipped: bool = False


def decide(
    s: Settings,
    problem: Any,
    flips: Numbers,
    match_rates: Numbers,
    label: int,
    counts: Sequence[Any],
    candidates: Sequence[Any],
    minority: Numbers,
    visit: Any,
) -> None:
    """Record one visit and decide what to do with the problem, all but the skip.

    Args:
        problem: as `ProblemState`; changed, as `flips` and `match_rates` of the last W visits are.
        candidates: responses per answer that minority candidates are chosen by.
        minority: output; True for minority candidates, per answer.
        visit: output, as `VisitRecord`.
    """
    visit.flipped = label != problem.label and problem.label >= 0
    visit.match_rate = (counts[label] if 0 <= label < len(counts) else 0) / s.n_votes
    visit.label = problem.label = label
    problem.visits += 1
    n_flips, total = push(flips, visit.flipped), push(match_rates, visit.match_rate)
    visit.flip_rate = 1.0 * visit.flipped if s.flip_rate_instant else n_flips / s.W
    visit.mean_match_rate = total / min(problem.visits, s.W)
    contested = visit.flip_rate > s.tau_FR
    problem.had_competition = problem.had_competition or contested
    visit.had_competition = problem.had_competition
    visit.weight = weigh(s, problem, visit) if s.frs else 1.0
    visit.n_minority = find_minority(s.least, label, candidates, minority)
    visit.beta = protect(s, problem, visit) if s.mps else 0.0
    high_risk = at_high_risk(s, visit.had_competition, problem.visits, visit.mean_match_rate)
    visit.route = HIGH_RISK if high_risk else AT_RISK if contested else STABLE
    visit.skipped = False


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
        s = settings(self.config, votes.n_votes, votes.n_samples)
        votes, scores, memory = self._widened(state, votes, scores)
        counts, told, remembered = _lists(votes.counts, scores, memory)
        labels = []
        for p, (old, tie) in enumerate(zip(*_numbers(state.label, draws.tie), strict=True)):
            if s.label_from_memory:
                remember(remembered[p], told[p], s.discount)
            chosen_by = remembered[p] if s.label_from_memory else told[p]
            labels.append(choose_label(s, chosen_by, counts[p], old, tie)[0])
        return replace(state, label=_array(labels, state.label), memory=_array(remembered, memory))

    def step(
        self, rows: GuardState, votes: Votes, draws: Draws, scores: Array | None = None
    ) -> tuple[GuardState, Decision]:
        """Record one visit of every row and decide on it (docs/method.md, sections 2 to 7).

        Args:
            rows: `state.take(problems)`, (..., P).
            scores: (..., P, A) at least 0; what the label has most of, and what a memory sums,
                where a rule of `guard_core.rules` has another choice than the votes themselves.
                Match rates are shares of the votes in any case.
        """
        s = settings(self.config, votes.n_votes, votes.n_samples)
        votes, scores, memory = self._widened(rows, votes, scores)
        candidates = candidate_votes(votes, s.minority_over_samples)
        counts, told, remembered, flips, match_rates, candidates_PA = _lists(
            votes.counts, scores, memory, rows.flips, rows.match_rates, candidates
        )
        numbers = (getattr(rows, name) for name in ProblemState.__slots__)
        problems = [ProblemState(*row) for row in zip(*_numbers(*numbers), strict=True)]
        minority = [[False] * len(row) for row in counts]
        visits, tied, keys = [], [], []
        drawn = zip(*_numbers(draws.tie, draws.skip, draws.pick), strict=True)
        for p, (problem, (tie, skip, pick)) in enumerate(zip(problems, drawn, strict=True)):
            if s.label_from_memory:
                remember(remembered[p], told[p], s.discount)
            chosen_by, visit = remembered[p] if s.label_from_memory else told[p], VisitRecord()
            label, shared = choose_label(s, chosen_by, counts[p], problem.label, tie)
            given = (label, counts[p], candidates_PA[p], minority[p])
            decide(s, problem, flips[p], match_rates[p], *given, visit)
            weigh_support(s, chosen_by, visit)
            visits.append(visit)
            tied.append(shared)
            keys.append(skip_key(s, visit, skip, pick))
        n_batch = rows.label.shape[-1]
        cap = skip_cap(n_batch, self.config)
        if cap > 0:
            for start in range(0, len(keys), max(n_batch, 1)):
                at = slice(start, start + n_batch)
                choose_skips(keys[at], cap, visits[at])
        new: dict[str, list[Any]] = {
            name: [getattr(problem, name) for problem in problems]
            for name in ProblemState.__slots__
        }
        new |= {"flips": flips, "match_rates": match_rates, "memory": remembered}
        old = replace(rows, memory=memory)
        rows = GuardState(**{name: _array(new[name], getattr(old, name)) for name in new})
        return rows, _decision(s, rows, visits, tied, minority, candidates)

    def remembered(self, rows: GuardState) -> Array | None:
        """(..., P, A) memory times `discount`, before `step`; None where labels do not remember."""
        if self.config.labels.label_from != "memory":
            return None
        return self.config.labels.discount * rows.memory

    def _widened(
        self, rows: GuardState, votes: Votes, scores: Array | None
    ) -> tuple[Votes, Array, Array]:
        """Pad votes, scores and memory to one width of at least one answer."""
        width = max(1, votes.counts.shape[-1], rows.memory.shape[-1])
        votes = votes.wide(width)
        scores = votes.counts if scores is None else widen(np.asarray(scores), width)
        remembers = self.config.labels.label_from == "memory"
        return votes, scores, widen(rows.memory, width) if remembers else rows.memory


def _lists(*arrays: Array) -> list[list[Any]]:
    """Rows of arrays (..., P, A) as lists of numbers."""
    n_rows = arrays[0].size // arrays[0].shape[-1]
    return [array.reshape(n_rows, array.shape[-1]).tolist() for array in arrays]


def _numbers(*arrays: Array) -> list[list[Any]]:
    return [array.reshape(-1).tolist() for array in arrays]


def _array(values: Sequence[Any], like: Array) -> Array:
    return np.array(values, like.dtype).reshape(like.shape)


def _decision(
    s: Settings,
    rows: GuardState,
    visits: Sequence[VisitRecord],
    tied: Sequence[bool],
    minority: Sequence[Numbers],
    candidates: Array,
) -> Decision:
    def of(name: str, dtype: type[np.generic] = np.float64) -> Array:
        return np.array([getattr(visit, name) for visit in visits], dtype).reshape(rows.label.shape)

    mean_match_rate = of("mean_match_rate")
    return Decision(
        label=rows.label,
        flipped=of("flipped", np.bool_),
        tied=np.array(tied, np.bool_).reshape(rows.label.shape),
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
