"""Successive halving: every round adds paired replicates and keeps the better half.

Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
optimization". All candidates of a round run on the same replicates, so they are compared in pairs.
The plain arms stay in all rounds, as references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from lab.errors import UserError
from lab.settings import to_values
from sim.settings.config import SimConfig
from sim.studies.search.space import ARMS, AXES, LRS, Candidate, candidates
from sim.studies.search.table import scores
from sim.studies.sweep.axes import Axis
from sim.studies.sweep.folder import SweepFolder
from sim.studies.sweep.jobs import Job, job_of
from sim.studies.sweep.plan import Sweep, check_files, contents
from sim.studies.sweep.pool import Pool
from sim.studies.sweep.run import Pairs, run_pairs

Objective = Literal["mean", "minimum"]


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
        """Return the candidates of the first round: as many as the budget allows."""
        most = len(self.arms)
        while self.n_runs(most + 1) <= self.budget and most < self.budget:
            most += 1
        # Spawned apart from the seed of the runs, whose random numbers these must not repeat.
        rng = np.random.default_rng(np.random.SeedSequence(self.base.seed, spawn_key=(0, 0, 2)))
        return candidates(self.sweep, self.axes, most, rng)

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


def run_search(
    search: Search, folder: Path | str, pool: Pool | None = None, *, progress: bool = False
) -> pd.DataFrame:
    """Run a search, or what is left of it.

    Args:
        search: what to run.
        folder: new or empty, or with an unfinished run of the same search, which is continued.
        pool: where jobs run; one after the other in this process if left out.
        progress: show a bar for every round.

    Returns:
        One row per run: candidate (its title), arm, lr, replicate, round and the measures of
        `sim.engine.tally.MEASURES`.

    Raises:
        UserError: as `sim.studies.sweep.run_sweep`.
    """
    files = contents(search.sweep)
    left = search.candidates()
    check_files([search.base])
    store = SweepFolder.create(Path(folder), {**search.definition(), "files": files})
    store.describe("running")
    rows, status = pd.DataFrame(), "interrupted"
    try:
        for number, (added, size) in enumerate(
            zip(search.rounds, search.sizes(len(left)), strict=True)
        ):
            if number:
                left = _better(left, rows, search, size)
            jobs = _jobs(search, left, added, files)
            pairs: Pairs = [(c.cell(lr), c.arm, job) for (c, lr), job in jobs.items()]
            run_pairs(pairs, store, pool or Pool(), progress)
            rows = pd.concat([rows, _rows(jobs, store, number)], ignore_index=True)
        status = "finished"
    finally:
        store.finish(rows, status, runs=len(rows))
    return rows


def _jobs(
    search: Search, left: Sequence[Candidate], added: range, files: Mapping[str, str]
) -> dict[tuple[Candidate, float], Job]:
    base = replace(search.base, first_replicate=added.start, replicates=len(added))
    sweep = replace(search.sweep, base=base)
    made = {(c, lr): job_of(sweep, c.cell(lr), c.arm, files) for c in left for lr in search.lrs}
    return {key: job for key, job in made.items() if isinstance(job, Job)}


def _rows(
    jobs: Mapping[tuple[Candidate, float], Job], store: SweepFolder, number: int
) -> pd.DataFrame:
    parts = [
        store.tables[job.key].assign(candidate=c.title, arm=c.arm, lr=lr, round=number)
        for (c, lr), job in jobs.items()
        if job.key in store.tables
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _better(
    left: Sequence[Candidate], rows: pd.DataFrame, search: Search, size: int
) -> list[Candidate]:
    """The plain arms and the best of the others, `size` together."""
    score = scores(rows, search.lrs)[search.objective].to_dict()
    plain = [c for c in left if not c.values]
    # A candidate that failed at some learning rate has no score and comes last.
    others = [c for c in left if c.values]
    others.sort(key=lambda c: -score.get(c.title, -np.inf))
    return [*plain, *others[: size - len(plain)]]
