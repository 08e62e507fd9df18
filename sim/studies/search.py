"""Search over arms and settings: random candidates, halved after every round.

Successive halving (Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943): every round adds
paired replicates and keeps the better half. The plain arms stay in all rounds, as references.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.base.columns import TextTable, floats, select, unique, where
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.settings import to_values
from lab.base.stats import LEVEL, estimate, with_interval
from lab.study import needs
from sim.settings.config import SEARCH_ARMS, SEARCH_LRS, Objective, SimConfig
from sim.settings.populations import sizes
from sim.studies.jobs import FILES, Value, assign, check_files, check_grid, contents, job_of, read
from sim.studies.sweep import claimed, run_jobs

AXES: Mapping[str, tuple[Value, ...]] = {
    "kl_coef": (0.0, 0.05, 0.2, 1.0),
    "guard.negative_scale": (1.0, 0.5, 0.0),
    "guard.hysteresis": (0.0, 0.25),
    "guard.discount": (1.0, 0.8),
}
"""Settings that are combined with every arm."""
TABLE = "search.csv"
_COLUMNS = ["mean", "minimum", "minus_vote", "replicates", "gain", "low", "high"]
_SHOWN = 20


class Candidate(NamedTuple):
    """An arm with the settings that differ from those that all candidates share."""

    arm: str
    values: tuple[tuple[str, Value], ...] = ()

    @property
    def title(self) -> str:
        """The arm and its settings in one line."""
        changed = (f"{name.rpartition('.')[2]}={value}" for name, value in self.values)
        return " ".join((self.arm, *changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The settings of a search."""

    base: SimConfig
    """Settings that all candidates share; its replicates are those of the last round."""
    arms: tuple[str, ...] = SEARCH_ARMS
    axes: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: dict(AXES))
    lrs: tuple[float, ...] = SEARCH_LRS
    sets: tuple[str, ...] = ()
    """Further response files, of other problem sets or start models than that of `base`."""
    objective: Objective = "mean"
    """Over the learning rates, of the final pass@1: its mean, or its lowest mean over seeds."""
    budget: int = 1000
    """Most runs, of one candidate at one learning rate on one set in one replicate each."""

    def __post_init__(self) -> None:
        check_grid(self.base, self.arms, self.axes.items())
        if controls := [name for name in self.arms if needs(name)]:
            raise UserError(f"arms: {controls[0]} is a control, which a search cannot judge")
        if "lr" in self.axes:
            raise UserError("vary lr: give learning rates by --lrs")
        if not self.lrs or len(set(self.lrs)) < len(self.lrs):
            raise UserError("lrs: give learning rates, each once")
        if len({self.base.response, *self.sets}) <= len(self.sets):
            raise UserError("sets: give response files other than --response, each once")
        if (least := self.n_runs(len(self.arms))) > self.budget:
            raise UserError(f"budget = {self.budget}: the plain arms alone need {least} runs")

    @property
    def cells(self) -> list[dict[str, Value]]:
        """What every candidate is run at: learning rate, and response file with its sizes."""
        files = [(f, sizes(self.base.population, f)) for f in (self.base.response, *self.sets)]
        return [
            {"lr": lr, "response": file, **{name: of[name] for name in ("n_problems", "n_answers")}}
            for (file, of), lr in itertools.product(files, self.lrs)
        ]

    @property
    def ends(self) -> list[int]:
        """Replicates after each round: 1, 2, 4 and so on up to all."""
        n = self.base.replicates
        return [*(2**k for k in range((n - 1).bit_length())), n]

    def sizes(self, n: int) -> list[int]:
        """Candidates of every round, of n in the first."""
        return [max(len(self.arms), -(-n // 2**k)) for k in range(len(self.ends))]

    def n_runs(self, n: int) -> int:
        """Runs of a search that begins with n candidates."""
        at_one_cell = int(np.dot(self.sizes(n), np.diff([0, *self.ends])))
        return len(self.lrs) * (1 + len(self.sets)) * at_one_cell

    def candidates(self, files: Mapping[str, str] | None = None) -> list[Candidate]:
        """Return the candidates of the first round, as many as the budget allows.

        All plain arms come first, then others in random order; the runs of any two differ.
        """
        rate = {"lr": self.lrs[0]}
        plain_of = {arm: job_of(self.base, rate, arm, files).config for arm in self.arms}
        made = [
            Candidate(arm, tuple((n, v) for n, v in pairs if v != read(plain_of[arm], n)))
            for arm in self.arms
            for values in itertools.product(*self.axes.values())
            for pairs in [zip(self.axes, values, strict=True)]
        ]
        # Few settings first: of candidates with the same runs the simplest name stays.
        made = [*map(Candidate, self.arms), *sorted(made, key=lambda c: len(c.values))]
        by_key: dict[str, Candidate] = {}
        for candidate in made:
            job = job_of(self.base, {**dict(candidate.values), **rate}, candidate.arm, files)
            if not job.reason:
                by_key.setdefault(job.key, candidate)
            elif not candidate.values:
                raise UserError(f"arm {candidate.arm}: {job.reason}")
        kept = list(by_key.values())
        plain, others = [c for c in kept if not c.values], [c for c in kept if c.values]
        # Spawned apart from the seed of the runs, whose random numbers these must not repeat.
        rng = np.random.default_rng(np.random.SeedSequence(self.base.seed, spawn_key=(0, 0, 2)))
        shuffled = [*plain, *(others[place] for place in rng.permutation(len(others)))]
        n = max(n for n in range(len(plain), len(by_key) + 1) if self.n_runs(n) <= self.budget)
        return shuffled[:n]


def run_search(
    search: Search, folder: Path | str, workers: int | None = None, *, progress: bool = False
) -> pd.DataFrame:
    """Run a search, or what is left of it in its folder.

    Returns:
        One row per run: round, candidate (its title), arm, lr, response and the columns of
        `run_sweep` from replicate on.
    """
    cells = search.cells
    bases = [assign(search.base, cell) for cell in cells[:: len(search.lrs)]]
    files = contents((name, getattr(base, name)) for base in bases for name in FILES)
    left = search.candidates(files)
    for base in bases:
        check_files([base])
    values = to_values(search)
    definition = {"settings": values.pop("base"), "search": values, "files": files}
    pairs, rows, start = [], pd.DataFrame(), 0
    with claimed(folder, definition, workers) as place:
        rounds = zip(search.ends, search.sizes(len(left)), strict=True)
        for number, (end, size) in enumerate(rounds):
            if number:
                score = scores(rows, search.lrs)[search.objective].to_dict()
                # Plain arms stay. One of which a run failed has no score, and is last.
                ranks = [-score.get(c.title, -np.inf) if c.values else -np.inf for c in left]
                left = [left[place] for place in np.argsort(ranks, kind="stable")[:size]]
            first = search.base.first_replicate + start
            base = replace(search.base, first_replicate=first, replicates=end - start)
            for c, cell in itertools.product(left, cells):
                row = {"round": number, "candidate": c.title, "arm": c.arm}
                row |= {name: cell[name] for name in ("lr", "response")}
                pairs.append((row, job_of(base, {**dict(c.values), **cell}, c.arm, files)))
            # A search that was stopped finds the runs of its later rounds again.
            goes_on = end < search.ends[-1]
            rows = run_jobs(pairs, place, workers, progress, keeps_others=goes_on)
            start = end
    return rows


def scores(rows: pd.DataFrame, lrs: Sequence[float]) -> pd.DataFrame:
    """The scores of candidates none of whose runs failed.

    Returns:
        One row per candidate, by its title: final pass@1 in percent at every learning rate (mean
        over sets and replicates), mean and minimum of them, the mean minus that of the vote before
        training, and replicates.
    """
    failed = select(rows, rows["pass_final"].isna())
    rows = select(rows, ~rows["candidate"].isin(failed["candidate"]))
    table = rows.pivot_table(index="candidate", columns="lr", values="pass_final", sort=False)
    table = table.reindex(columns=list(lrs))
    of = rows.groupby("candidate")
    mean, vote, counts = table.mean(axis=1), of["maj_start"].mean(), of["replicate"].nunique()
    columns = {"mean": mean, "minimum": table.min(axis=1), "minus_vote": mean - vote[table.index]}
    return table.assign(**columns, replicates=counts[table.index])


def results(rows: pd.DataFrame, lrs: Sequence[float], objective: str) -> pd.DataFrame:
    """Return the table of a search, those of the most replicates and the best score first.

    `gain` is the mean over learning rates and sets minus that of the first candidate, paired by
    replicate; NaN where that one failed. Its t-interval `low` to `high` holds for all candidates at
    once with 95 % (Bonferroni's correction), also for those that were chosen because they were
    best.
    """
    table = scores(rows, lrs)
    level = 1 - (1 - LEVEL) / max(1, len(unique(rows, "candidate")) - 1)
    means = rows.pivot_table(index="replicate", columns="candidate", values="pass_final")
    reference = rows["candidate"].iloc[0]
    first = floats(means, reference) if reference in table.index else np.nan
    gains = [estimate(floats(means, name) - first, level) for name in table.index]
    table["gain"] = [gain.mean for gain in gains]
    table["low"], table["high"] = [gain.low for gain in gains], [gain.high for gain in gains]
    return table.sort_values(["replicates", objective], ascending=False, kind="stable")


def report(search: Search, rows: pd.DataFrame, out: Path) -> None:
    """Write the table of a search, and print its best rows."""
    table, first = results(rows, search.lrs, search.objective), rows["candidate"].iloc[0]
    with whole(out / TABLE) as file:
        table.to_csv(file, float_format="%.3f")
    lines = []
    for name, (mean, low, over_vote, n, *gain) in table[_COLUMNS].head(_SHOWN).iterrows():
        numbers = f"{mean:.1f}", f"{low:.1f}", f"{over_vote:+.1f}", f"{n:.0f}"
        lines.append([str(name), *numbers, with_interval(*gain)])
    head = ["candidate", "mean", "minimum", "- vote", "replicates", f"mean - {first}"]
    print(f"{len(rows)} runs of {rows['candidate'].nunique()} candidates, final pass@1 in %")
    print("\n".join(TextTable(head, lines).lines()))
    print("mean and minimum over the learning rates, which the file has one by one; vote: majority")
    print("before training; the intervals hold for all candidates at once with 95 %")
    if len(failed := where(rows, status="failed")):
        names, reason = ", ".join(unique(failed, "candidate")), failed["reason"].iloc[0]
        print(f"left out: {names}; the first failed: {reason}")
    print(out / TABLE)
