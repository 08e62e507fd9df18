"""The guard by `guard_core.visit`, problem by problem, on Python's own numbers and lists."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from guard_core import GuardConfig, visit
from guard_core.guard import skip_cap

N_ANSWERS = 16
"""More than any test has."""


@dataclass
class Visit:
    """One problem's share of a batch."""

    problem: Hashable
    answers: Sequence[int]
    """V answer ids, -1 unparseable."""
    n_samples: int
    tie: float = 0.0
    skip: float = 0.0
    pick: float = 0.0

    @property
    def counts(self) -> list[int]:
        return counted(self.answers)

    @property
    def samples(self) -> list[int]:
        return counted(self.answers[: self.n_samples])


def counted(answers: Sequence[int]) -> list[int]:
    return [sum(answer == a for answer in answers) for a in range(N_ANSWERS)]


@dataclass
class Problem:
    """A problem's whole history."""

    flips: list[int]
    match_rates: list[float]
    memory: list[float] = field(default_factory=lambda: [0.0] * N_ANSWERS)
    label: int = -1
    visits: int = 0
    c2_fired: int = 0
    steady: int = 0
    had_competition: bool = False
    mps_active: bool = False


class ScalarGuard:
    """The guard over a dictionary of problems."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self.problems: dict[Hashable, Problem] = {}

    def prime(self, batch: Sequence[Visit]) -> None:
        for seen in batch:
            problem = self.problem(seen)
            problem.label, _ = self.choose_label(problem, seen)

    def problem(self, seen: Visit) -> Problem:
        width = self.config.W
        return self.problems.setdefault(seen.problem, Problem([0] * width, [0.0] * width))

    def settings(self, seen: Visit) -> visit.Settings:
        return visit.settings(self.config, len(seen.answers), seen.n_samples)

    def choose_label(self, problem: Problem, seen: Visit) -> tuple[int, bool]:
        s, scores = self.settings(seen), seen.counts
        if s.memory:
            visit.remember(problem.memory, scores, s.discount)
            scores = problem.memory
        return visit.choose_label(s, scores, seen.counts, problem.label, seen.tie)

    def step(self, batch: Sequence[Visit]) -> list[Any]:
        """Decide on a batch; every verdict has the columns of a visit, and the candidates."""
        verdicts, keys = [], []
        for seen in batch:
            s, problem = self.settings(seen), self.problem(seen)
            label, tied = self.choose_label(problem, seen)
            votes = seen.counts if self.config.minority_over == "votes" else seen.samples
            minority = [False] * N_ANSWERS
            verdict = SimpleNamespace(tied=tied, candidate_votes=votes, minority=minority)
            histories = (problem.flips, problem.match_rates)
            visit.decide(s, problem, *histories, label, seen.counts, votes, minority, verdict)
            verdict.visits = problem.visits
            verdict.high_risk = verdict.route == visit.HIGH_RISK
            visit.weigh_support(s, problem.memory if s.memory else seen.counts, verdict)
            keys.append(visit.skip_key(s, verdict, seen.skip, seen.pick))
            verdicts.append(verdict)
        cap = skip_cap(len(batch), self.config)
        if self.config.rcsu and cap:
            visit.choose_skips(keys, cap, verdicts)
        return verdicts

    def advantages(self, batch: Sequence[Visit], verdicts: Sequence[Any]) -> list[list[float]]:
        """The sum of both streams per answer of every problem, mixed with beta."""
        hits = [
            (sums(v.label, b.samples), sums(v.minority, b.samples))
            for b, v in zip(batch, verdicts, strict=True)
        ]
        stds = (0.0, 0.0)
        s = self.settings(batch[0])
        if s.scale_batch:
            by_stream = zip(*hits, strict=True)
            factors = (1.0, s.minority_reward)
            stds = tuple(
                visit.batch_std(s, own, factor, verdicts)
                for own, factor in zip(by_stream, factors, strict=True)
            )
        advantages = []
        for verdict, own in zip(verdicts, hits, strict=True):
            out = [0.0] * N_ANSWERS
            visit.answer_advantages(
                s, verdict, verdict.label, verdict.minority, verdict.candidate_votes, own, stds, out
            )
            advantages.append(out)
        return advantages


def sums(chosen: int | list[bool], samples: list[int]) -> int:
    """Samples on one answer, or on all that are marked."""
    if isinstance(chosen, list):
        return sum(n for n, marked in zip(samples, chosen, strict=True) if marked)
    return samples[chosen] if chosen >= 0 else 0
