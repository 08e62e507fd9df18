"""docs/method.md, sections 2 to 8, as a slow scalar program: dictionaries, exact fractions.

It shares no code with `guard_core`, so that both can only agree by both following docs/method.md.
Settings are a plain dictionary; every decimal in them is taken as the decimal that was written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

STABLE, AT_RISK, HIGH_RISK, SKIPPED = range(4)


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
    def votes(self) -> Counter[int]:
        return Counter(answer for answer in self.answers if answer >= 0)

    @property
    def samples(self) -> Counter[int]:
        return Counter(answer for answer in self.answers[: self.n_samples] if answer >= 0)


@dataclass
class Verdict:
    """The guard's output for one problem of the batch."""

    label: int | None
    tied: bool
    flipped: bool
    visits: int
    match_rate: Fraction
    flip_rate: Fraction
    mean_match_rate: Fraction
    had_competition: bool
    c1: bool = False
    c2: bool = False
    weight: Fraction = Fraction(1)
    beta: Fraction = Fraction(0)
    candidates: dict[int, int] = field(default_factory=dict)
    high_risk: bool = False
    skip: bool = False
    route: int = STABLE


@dataclass
class Problem:
    """A problem's whole history."""

    label: int | None = None
    flips: list[bool] = field(default_factory=list)
    match_rates: list[Fraction] = field(default_factory=list)
    ballots: list[Counter[int]] = field(default_factory=list)
    had_competition: bool = False
    c2_visits: int = 0
    protected: bool = False
    calm: int = 0


class ScalarGuard:
    """The guard over a dictionary of problems."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = {
            name: Fraction(str(value)) if isinstance(value, float) else value
            for name, value in settings.items()
        }
        self.problems: dict[Hashable, Problem] = {}

    def prime(self, batch: Sequence[Visit]) -> None:
        for visit in batch:
            problem = self.problems.setdefault(visit.problem, Problem())
            problem.ballots.append(visit.votes)
            problem.label, _ = self.choose_label(problem, visit)

    def step(self, batch: Sequence[Visit]) -> list[Verdict]:
        verdicts = []
        for visit in batch:
            problem = self.problems.setdefault(visit.problem, Problem())
            verdict = self.monitor(problem, visit)
            contested = verdict.flip_rate > self.settings["tau_FR"]
            if self.settings["frs"]:
                self.scale(problem, verdict, contested)
            self.find_candidates(verdict, visit)
            if self.settings["mps"]:
                self.protect(problem, verdict, contested)
            verdict.high_risk = (
                problem.had_competition
                and len(problem.flips) >= self.settings["W"]
                and verdict.mean_match_rate > self.settings["theta_MR"]
            )
            verdict.route = AT_RISK if contested else STABLE
            verdict.route = HIGH_RISK if verdict.high_risk else verdict.route
            verdicts.append(verdict)
        if self.settings["rcsu"]:
            self.leave_out(batch, verdicts)
        return verdicts

    def choose_label(self, problem: Problem, visit: Visit) -> tuple[int | None, bool]:
        """The label after this visit, and whether the first place was tied."""
        if not visit.votes:
            return problem.label, False
        scores = self.scores(problem)
        best = max(scores.values())
        tied = sorted(answer for answer, score in scores.items() if score == best)
        if self.settings["label_from"] == "frozen" and problem.label is not None:
            return problem.label, len(tied) > 1
        if self.settings["tie_break"] == "first":
            winner = tied[0]
        elif self.settings["tie_break"] == "incumbent" and problem.label in tied:
            winner = problem.label
        else:
            winner = tied[math.floor(Fraction(visit.tie) * len(tied))]
        return winner, len(tied) > 1

    def scores(self, problem: Problem) -> dict[int, Fraction]:
        """Scores of the answers: this visit's votes, or the discounted sum over all visits."""
        if self.settings["label_from"] != "memory":
            return {answer: Fraction(n) for answer, n in problem.ballots[-1].items()}
        sums: dict[int, Fraction] = {}
        for age, ballot in enumerate(reversed(problem.ballots)):
            for answer, n in ballot.items():
                value = n * Fraction(self.settings["discount"]) ** age
                sums[answer] = sums.get(answer, Fraction(0)) + value
        return sums

    def monitor(self, problem: Problem, visit: Visit) -> Verdict:
        problem.ballots.append(visit.votes)
        label, tied = self.choose_label(problem, visit)
        flipped = problem.label is not None and label != problem.label
        problem.label = label
        problem.flips.append(flipped)
        got = 0 if label is None else visit.votes[label]
        problem.match_rates.append(Fraction(got, len(visit.answers)))
        width = self.settings["W"]
        flip_rate = Fraction(sum(problem.flips[-width:]), width)
        if self.settings["flip_rate"] == "instant":
            flip_rate = Fraction(int(flipped))
        if flip_rate > self.settings["tau_FR"]:
            problem.had_competition = True
        recent = problem.match_rates[-width:]
        return Verdict(
            label=label,
            tied=tied,
            flipped=flipped,
            visits=len(problem.flips),
            match_rate=problem.match_rates[-1],
            flip_rate=flip_rate,
            mean_match_rate=sum(recent, Fraction(0)) / len(recent),
            had_competition=problem.had_competition,
        )

    def scale(self, problem: Problem, verdict: Verdict, contested: bool) -> None:
        """FRS."""
        s = self.settings
        verdict.c1 = contested and verdict.match_rate > s["tau_MR"]
        verdict.c2 = (
            not problem.had_competition
            and verdict.visits >= s["W"]
            and verdict.mean_match_rate > s["tau_MR"]
            and problem.c2_visits < s["W"]
        )
        weight = 1 - s["l1"] * verdict.flip_rate
        if verdict.c1:
            weight *= 1 - s["l2"]
        if verdict.c2:
            problem.c2_visits += 1
            weight *= 1 - Fraction(s["l2"]) / 2
        verdict.weight = max(Fraction(s["w_min"]), Fraction(weight))

    def find_candidates(self, verdict: Verdict, visit: Visit) -> None:
        least = max(1, math.floor(Fraction(str(self.settings["minority_share"])) * visit.n_samples))
        over_votes = self.settings["minority_over"] == "votes"
        for answer, n in (visit.votes if over_votes else visit.samples).items():
            if answer != verdict.label and n >= least:
                verdict.candidates[answer] = n

    def protect(self, problem: Problem, verdict: Verdict, contested: bool) -> None:
        """MPS."""
        s = self.settings
        if contested:
            problem.protected, problem.calm = True, 0
        else:
            problem.calm += 1
            if problem.calm >= s["T_steady"]:
                problem.protected = False
        if not problem.protected or (s["empty_minority"] == "plain" and not verdict.candidates):
            return
        strength = verdict.flip_rate
        if s["beta_schedule"] == "saturating":
            # At a threshold of 0 every flip rate above it saturates.
            ratio = strength / Fraction(s["tau_FR"]) if s["tau_FR"] else strength * 10**9
            strength = min(ratio, Fraction(1))
        verdict.beta = s["beta_max"] * strength

    def leave_out(self, batch: Sequence[Visit], verdicts: Sequence[Verdict]) -> None:
        """RCSU."""
        s = self.settings
        cap = math.floor(Fraction(str(s["skip_share"])) * len(batch))
        if s["skip_cap"] == "at_least_one":
            cap = max(1, cap)
        drawn = [
            place
            for place, verdict in enumerate(verdicts)
            if verdict.high_risk and Fraction(batch[place].skip) < s["p_skip"]
        ]
        if s["skip_order"] == "random":
            drawn.sort(key=lambda place: batch[place].pick)
        for place in drawn[:cap]:
            verdicts[place].skip = True
            verdicts[place].route = SKIPPED
