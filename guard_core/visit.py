"""The law of a visit: from the votes of a batch to the guard's decisions and its new memory.

The functions work on lists of Python's numbers and, compiled by `guard_core.machine_code`, on
arrays. Shapes name both: B batches of P problems, among N whose memory is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from guard_core.config import Numbers, Settings
from guard_core.decision import AT_RISK, HIGH_RISK, STABLE
from guard_core.frs import push, weigh, weigh_support
from guard_core.labels import choose_label, remember
from guard_core.mps import find_minority, protect
from guard_core.rcsu import at_high_risk, choose_skips, skip_key
from guard_core.votes import Array

Rows = Any
"""(B, P, ...) nested lists or an array."""


@dataclass(slots=True)
class ProblemState:
    """The fields of `GuardState` that are one number, of one problem."""

    label: int
    visits: int
    c2_fired: int
    steady: int
    had_competition: bool
    mps_active: bool


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
    tie: bool = False


_WIDTH = {"bool": np.bool_, "float": np.float64, "int": np.int32}


def _record(kind: type) -> np.dtype[np.void]:
    """The dtype of records of a class; fields that are one number stand side by side in them."""
    fields = kind.__annotations__.items()
    return np.dtype([(name, _WIDTH[word]) for name, word in fields], align=True)


PROBLEM, VISIT = _record(ProblemState), _record(VisitRecord)


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
    visit.match_rate = match_rate(s, label, counts)
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


def match_rate(s: Settings, label: int, counts: Sequence[Any]) -> float:
    """Return the share of all V votes that the label got, which may be an answer of before."""
    return (counts[label] if 0 <= label < len(counts) else 0) / s.n_votes


class Memory(NamedTuple):
    """`GuardState` by batch, changed in place."""

    problems: Rows
    """(B, N) of `ProblemState`, or records of its fields."""
    flips: Rows
    """(B, N, W)."""
    match_rates: Rows
    """(B, N, W)."""
    votes: Rows
    """(B, N, A), or (B, N, 0) where labels do not remember."""


def label_of(
    s: Settings, old: int, memory: Numbers, scores: Sequence[Any], tie: float
) -> tuple[int, bool]:
    """Return the label of a visit and whether it was tied; a memory takes in the scores."""
    if s.label_from_memory:
        remember(memory, scores, s.discount)
        return choose_label(s, memory, scores, old, tie)
    return choose_label(s, scores, scores, old, tie)


def prime_batches(
    settings_1: Sequence[Settings],
    memory: Memory,
    tie: Rows,
    scores: Rows,
    counts: Rows,
    visits: Rows,
) -> None:
    """Take in visit 0 of all problems; the arguments are those of `visit_batches`."""
    s = settings_1[0]
    for b in range(len(counts)):
        for n in range(len(counts[b])):
            problem, visit, votes = memory.problems[b][n], visits[b][n], counts[b][n]
            past, told = memory.votes[b][n], scores[b][n]
            label, tied = label_of(s, problem.label, past, told, tie[b][n])
            problem.label = visit.label = label
            visit.tie = tied
            visit.match_rate = match_rate(s, label, votes)


def visit_batches(
    settings_1: Sequence[Settings],
    memory: Memory,
    draws: tuple[Rows, Rows, Rows],
    order: Rows,
    scores: Rows,
    counts: Rows,
    cap: int,
    candidates: Rows,
    minority: Rows,
    keys: Numbers,
    visits: Rows,
) -> None:
    """Record one visit of every problem of the batches, and decide on it.

    Args:
        settings_1: one entry.
        draws: (B, N) each; `Draws.tie`, `skip` and `pick`.
        order: (B, P) the problems that are visited.
        scores: (B, P, A) what labels are chosen by and a memory sums; the votes or a rule's scores.
        cap: largest number of a batch's problems that are skipped.
        candidates: (B, P, A) responses that minority candidates are chosen by.
        minority: (B, P, A) output; True for minority candidates.
        keys: (P,) working memory.
        visits: (B, P) output, of `VisitRecord` or records of its fields.
    """
    s, (ties, skips, picks) = settings_1[0], draws
    for b in range(len(order)):
        problems_N, flips_N, rates_N = memory.problems[b], memory.flips[b], memory.match_rates[b]
        memory_N, visits_P = memory.votes[b], visits[b]
        for p in range(len(order[b])):
            n, visit, votes, told = order[b][p], visits_P[p], counts[b][p], scores[b][p]
            problem, past = problems_N[n], memory_N[n]
            label, tied = label_of(s, problem.label, past, told, ties[b][n])
            visit.tie = tied
            marked, responses = minority[b][p], candidates[b][p]
            decide(s, problem, flips_N[n], rates_N[n], label, votes, responses, marked, visit)
            if s.label_from_memory:
                weigh_support(s, past, visit)
            else:
                weigh_support(s, told, visit)
            keys[p] = skip_key(s, visit, skips[b][n], picks[b][n])
        if cap > 0:
            choose_skips(keys, cap, visits_P)


class Lists:
    """The law's containers in plain Python; `machine_code.Arrays` are those in machine code."""

    @staticmethod
    def settings(s: Settings) -> Sequence[Settings]:
        """Return the settings as the law takes them."""
        return (s,)

    @staticmethod
    def memory(columns: dict[str, Array]) -> Memory:
        """Copy the fields (B, P, ...) of a `GuardState`."""
        rows = zip(*(columns[name].tolist() for name in ProblemState.__slots__), strict=True)
        problems = [[ProblemState(*row) for row in zip(*batch, strict=True)] for batch in rows]
        arrays = (columns[name] for name in ("flips", "match_rates", "memory"))
        return Memory(problems, *(array.tolist() for array in arrays))

    @staticmethod
    def rows(array: Array) -> Rows:
        """(B, P, ...) numbers as the law reads and writes them."""
        return array.tolist()

    @staticmethod
    def visits(n_batches: int, n_problems: int) -> Rows:
        """Make room for the records of visits."""
        return [[VisitRecord() for _ in range(n_problems)] for _ in range(n_batches)]

    @staticmethod
    def records(rows: Rows, kind: np.dtype[np.void]) -> Array:
        """(B, P) records of problems or visits, as `PROBLEM` or `VISIT`."""
        names = kind.names or ()
        return np.array([[tuple(getattr(r, n) for n in names) for r in b] for b in rows], kind)
