"""`guard-sim search`: the rounds of a search, and its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from lab.errors import UserError
from lab.files import whole
from sim.settings.config import SimConfig
from sim.settings.options import FLAT, settings_of
from sim.studies.search.halving import Search
from sim.studies.search.space import ARMS, AXES, LRS, Candidate, Objective
from sim.studies.search.table import results, scores
from sim.studies.sweep.axes import parse
from sim.studies.sweep.folder import SweepFolder
from sim.studies.sweep.jobs import Job, job_of
from sim.studies.sweep.plan import check_files, contents
from sim.studies.sweep.pool import Backend, Pool
from sim.studies.sweep.run import Pairs, run_pairs

TABLE = "search.csv"
_SHOWN = 20


@dataclass(kw_only=True)
class SearchCommand:
    """Search arms and settings by successive halving; the same command continues a search.

    Every candidate, an arm with settings, is run over a grid of learning rates. Each round adds
    paired replicates and keeps the better half; the plain arms stay. With the policy `measured`
    replicate numbers are those of --seed and --first-replicate.
    """

    out: Path
    """Folder of the search: new, empty, or with an unfinished search of the same settings."""
    arms: tuple[str, ...] = ARMS
    """Arms that settings are combined with; the first is the reference of the table."""
    vary: tuple[str, ...] = ()
    """Settings to combine, as `kl_coef=0,.05,.2`; if left out KL penalty, scale of negative
    advantages, hysteresis and discount."""
    lrs: tuple[float, ...] = LRS
    """Learning rates that a candidate is judged over."""
    objective: Objective = "mean"
    """Mean over the learning rates of the final pass@1, or its minimum."""
    budget: int = 1000
    """Most runs: one candidate at one learning rate in one replicate each."""
    workers: int = 1
    """Processes on this machine."""
    backend: Backend = "local"
    """Processes of this machine, or a Dask or Ray cluster."""
    address: str | None = None
    """Of a running cluster."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, FLAT] = field(default_factory=lambda: SimConfig(replicates=5))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> SearchCommand:
        """Settings of --config and --response for what is not given."""
        return cls(out=tyro.MISSING, settings=settings_of(argv, SimConfig(replicates=5)))

    def run(self) -> None:
        """Run the search, write search.csv and print its best rows."""
        if self.settings.policy != "measured":
            raise UserError(
                "search: candidates are judged over learning rates; needs the policy "
                "measured, with --response and --lr"
            )
        axes = dict(parse(text) for text in self.vary) or dict(AXES)
        search = Search(
            base=self.settings,
            arms=self.arms,
            axes=axes,
            lrs=self.lrs,
            objective=self.objective,
            budget=self.budget,
        )
        pool = Pool(backend=self.backend, workers=self.workers, address=self.address)
        rows = run_search(search, self.out, pool, progress=not self.quiet)
        table = results(rows, self.lrs, self.objective)
        with whole(self.out / TABLE) as file:
            table.to_csv(file, float_format="%.3f")
        print(f"{len(rows)} runs of {rows['candidate'].nunique()} candidates, final pass@1 in %")
        print(table.head(_SHOWN).round(1).to_string())
        print(self.out / TABLE)


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
