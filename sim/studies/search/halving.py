"""Successive halving: every round adds paired replicates and keeps the better half.

Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
optimization". All candidates of a round run on the same replicates, so they are compared in pairs.
The plain arms stay in all rounds, as references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from lab.errors import UserError
from lab.settings import to_values
from sim.settings.config import SimConfig
from sim.studies.search.space import ARMS, AXES, LRS, Candidate, Objective, combinations
from sim.studies.sweep.axes import Axis
from sim.studies.sweep.jobs import Job, job_of
from sim.studies.sweep.plan import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The settings of a search.

    Raises:
        UserError: the budget is too small for the plain arms, or a setting is impossible.
    """

    base: SimConfig
    """Settings that all candidates share; its replicates are those of the last round."""
    arms: tuple[str, ...] = ARMS
    axes: Mapping[str, Axis] = field(default_factory=lambda: dict(AXES))
    lrs: tuple[float, ...] = LRS
    objective: Objective = "mean"
    """Over the learning rates, of the final pass@1: its mean, or its lowest mean over seeds."""
    budget: int = 1000
    """Most runs: one candidate at one learning rate in one replicate each."""

    def __post_init__(self) -> None:
        """Check the budget."""
        if not self.lrs or len(set(self.lrs)) < len(self.lrs):
            raise UserError("lrs: give learning rates, each once")
        if self.n_runs(len(self.arms)) > self.budget:
            least = self.n_runs(len(self.arms))
            raise UserError(f"budget = {self.budget}: the plain arms alone need {least} runs")

    @property
    def sweep(self) -> Sweep:
        """The same as a sweep, which makes the jobs."""
        return Sweep(base=self.base, arms=self.arms, groups=({"lr": self.lrs},))

    @property
    def rounds(self) -> list[range]:
        """Replicates that each round adds: 1, 1, 2, 4 and so on up to all."""
        ends = [2**k for k in range(self.base.replicates.bit_length())]
        ends = [*(end for end in ends if end < self.base.replicates), self.base.replicates]
        first = self.base.first_replicate
        starts = [0, *ends]
        return [range(first + a, first + b) for a, b in zip(starts, ends, strict=False)]

    def sizes(self, n: int) -> list[int]:
        """Return the candidates of every round, of n in the first."""
        return [max(len(self.arms), -(-n // 2**k)) for k in range(len(self.rounds))]

    def n_runs(self, n: int) -> int:
        """Return the runs of a search that begins with n candidates."""
        pairs = zip(self.sizes(n), self.rounds, strict=True)
        return len(self.lrs) * sum(size * len(added) for size, added in pairs)

    def candidates(self) -> list[Candidate]:
        """Return the candidates of the first round, as many as the budget allows.

        All plain arms come first, then others in random order; the runs of any two differ.

        Raises:
            UserError: an axis is no list of values, or a plain arm cannot be run.
        """
        # Few settings first: of candidates with the same runs the simplest name stays.
        combined = sorted(
            combinations(self.base, self.arms, self.axes), key=lambda c: len(c.values)
        )
        found: dict[str, Candidate] = {}
        for candidate in [*map(Candidate, self.arms), *combined]:
            job = job_of(self.sweep, candidate.cell(self.lrs[0]), candidate.arm)
            if isinstance(job, Job):
                found.setdefault(job.key, candidate)
            elif not candidate.values:
                raise UserError(f"arm {candidate.arm}: {job.reason}")
        plain = [c for c in found.values() if not c.values]
        others = [c for c in found.values() if c.values]
        # Spawned apart from the seed of the runs, whose random numbers these must not repeat.
        rng = np.random.default_rng(np.random.SeedSequence(self.base.seed, spawn_key=(0, 0, 2)))
        shuffled = [others[place] for place in rng.permutation(len(others))]
        n = len(plain)
        while n < len(found) and self.n_runs(n + 1) <= self.budget:
            n += 1
        return [*plain, *shuffled][:n]

    def definition(self) -> dict[str, Any]:
        """Return what must agree for a search to be continued, as plain values."""
        names = ("arms", "lrs", "objective", "budget")
        values = {name: getattr(self, name) for name in names}
        definition = {
            "search": {**values, "axes": dict(self.axes)},
            "settings": to_values(self.base),
        }
        # As it will be read again: tuples are lists there.
        return msgspec.json.decode(msgspec.json.encode(definition))
