"""`run_sweep`: all cells and arms of a sweep into a folder, continued where it was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from sim.engine.tally import MEASURES
from sim.settings.machine_code import compilation_shown, nothing_compiled
from sim.studies.sweep.folder import FACTS, TRACES, Outcome, SweepFolder, together
from sim.studies.sweep.jobs import Impossible, Job, Task, job_of, perform
from sim.studies.sweep.plan import Cell, Sweep, check_files, contents, shown
from sim.studies.sweep.pool import Pool

FILES = "files"
"""In a sweep's definition: path to a hash of what was in it."""

Pairs = list[tuple[Cell, str, Job | Impossible]]
"""Every cell and arm with its job."""


def run_sweep(
    sweep: Sweep,
    folder: Path | str,
    pool: Pool | None = None,
    *,
    progress: bool = False,
    traces: bool = False,
    retry_failed: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> pd.DataFrame:
    """Run a sweep, or what is left of it.

    Args:
        sweep: what to run.
        folder: new or empty, or with an unfinished run of the same sweep, which is continued.
        pool: where jobs run; one after the other in this process if left out. Results do not
            depend on it.
        progress: show a bar with the remaining time.
        traces: also keep every run's folder in `traces/`, by the job's key. Workers elsewhere
            must see the folder under the same path. Jobs done without traces stay without.
        retry_failed: run cells again that failed before.
        on_outcome: called after each job.

    Returns:
        One row per cell, arm and replicate: cell, group, the varied settings, arm, replicate,
        status ("done" or "failed"), reason, the columns of `sim.engine.tally.MEASURES`,
        step_factor,
        skip_rate, achieved_ratio (of controls), key (of the job). A failed cell has NaN numbers.

    Raises:
        UserError: the folder holds something else, or was made with files that have changed; a
            file of the settings is missing, or none can be used; or there are no workers. All but
            the last are found before anything is written.
    """
    files = contents(sweep)
    pairs = _pairs(sweep, files)
    check_files(job.config for _, _, job in pairs if isinstance(job, Job))
    store = SweepFolder.create(Path(folder), _definition(sweep, files))
    if retry_failed:
        store.failures.clear()
    _note_impossible(pairs, store)
    store.describe("running")
    status = "interrupted"
    try:
        run_pairs(pairs, store, pool or Pool(), progress, traces, on_outcome)
        status = "finished"
    finally:
        rows = _assemble(sweep, pairs, store)
        keys = {job.key for _, _, job in pairs}
        done, failed = (len(keys & found.keys()) for found in (store.tables, store.failures))
        store.finish(rows, status, jobs=len(keys), done=done, failed=failed)
    return rows


def read_sweep(folder: Path | str) -> pd.DataFrame:
    """The rows of a sweep so far, also while it goes on or after it was killed; see `run_sweep`.

    Raises:
        UserError: the folder holds no sweep, or a damaged one.
    """
    store = SweepFolder.read(Path(folder))
    sweep = Sweep.of_definition(store.definition, str(folder))
    # As the files were when it was run: they may have changed or gone since.
    pairs = _pairs(sweep, store.definition.get(FILES, {}))
    _note_impossible(pairs, store)
    return _assemble(sweep, pairs, store)


def _definition(sweep: Sweep, files: dict[str, str]) -> dict[str, Any]:
    """The values that must agree for a sweep to be continued."""
    return sweep.definition() | ({FILES: files} if files else {})


def _pairs(sweep: Sweep, files: Mapping[str, str]) -> Pairs:
    return [
        (cell, arm, job_of(sweep, cell, arm, files)) for cell in sweep.cells() for arm in sweep.arms
    ]


def _note_impossible(pairs: Pairs, store: SweepFolder) -> None:
    for _, _, job in pairs:
        if isinstance(job, Impossible):
            store.failures[job.key] = job.reason


def run_pairs(
    pairs: Pairs,
    store: SweepFolder,
    pool: Pool,
    progress: bool,
    traces: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> None:
    """Run what is left: first plain arms, then the controls, which need their numbers."""
    jobs = {job.key: job for _, _, job in pairs if isinstance(job, Job)}
    where = store.path.absolute() / TRACES if traces else None
    if where is not None:
        where.mkdir(exist_ok=True)
    visits = {key: Task(job).visits for key, job in jobs.items()}
    # Visits and not cells: cells may differ in size, and the remaining time is a rate's.
    with (
        tqdm(
            total=sum(visits.values()),
            initial=sum(n for key, n in visits.items() if key in store),
            unit="visit",
            unit_scale=True,
            disable=not progress,
        ) as bar,
        compilation_shown(bar.set_postfix_str),
    ):
        if nothing_compiled():  # workers compile unseen
            bar.set_postfix_str("compiling")
        for controls in (False, True):
            chosen = [j for j in jobs.values() if (j.control is not None) == controls]
            left = [job for job in chosen if job.key not in store]
            for outcome in _outcomes(left, store, pool, where):
                store.add(outcome)
                failed = f", {len(store.failures)} failed" if store.failures else ""
                bar.set_postfix_str(f"{len(store.tables)} runs{failed}", refresh=False)
                bar.update(visits[outcome.key])
                if on_outcome is not None:
                    on_outcome(outcome)


def _outcomes(
    jobs: list[Job], store: SweepFolder, pool: Pool, traces: Path | None
) -> Iterator[Outcome]:
    """Outcomes of the jobs; a control whose arms failed fails with them."""
    tasks: dict[str, Task] = {}
    for job in jobs:
        guard, unguarded = job.guard_key, job.unguarded_key
        reasons = [store.failures[key] for key in (guard, unguarded) if key in store.failures]
        if job.control is not None and reasons:
            yield Outcome(job.key, None, f"{job.control.name}: its arms failed: {reasons[0]}")
        else:
            tables = (store.tables.get(guard), store.tables.get(unguarded))
            tasks[job.key] = Task(job, *tables, traces)
    # Closed at once on Ctrl-C, so that the workers end before the results are written.
    with closing(pool.map(perform, tasks)) as outcomes:
        yield from outcomes


def _assemble(sweep: Sweep, pairs: Pairs, store: SweepFolder) -> pd.DataFrame:
    """Rows of all jobs that ended, in the order of cells, arms and replicates."""
    ended = [(cell, arm, job.key) for cell, arm, job in pairs if job.key in store]
    settings = [
        {"cell": cell.number, "group": cell.group, **shown(sweep, cell), "arm": arm, "key": key}
        for cell, arm, key in ended
    ]
    cells = pd.DataFrame(settings, columns=["cell", "group", *sweep.names, "arm", "key"])
    keys = list(dict.fromkeys(key for _, _, key in ended))
    numbers = [_done(store, keys), _failed(sweep, store, keys)]
    numbers = [part for part in numbers if len(part)]
    columns = ["replicate", "status", "reason", *MEASURES, *FACTS, "key"]
    columns = ["cell", "group", *sweep.names, "arm", *columns]
    if not numbers:
        return pd.DataFrame(columns=columns)
    rows = cells.merge(pd.concat(numbers, ignore_index=True), on="key", how="left", sort=False)
    return rows.reindex(columns=columns)


def _done(store: SweepFolder, keys: list[str]) -> pd.DataFrame:
    return together(store.tables, keys).assign(status="done", reason="")


def _failed(sweep: Sweep, store: SweepFolder, keys: list[str]) -> pd.DataFrame:
    base = sweep.base
    numbers = range(base.first_replicate, base.first_replicate + base.replicates)
    rows = [
        {"key": key, "replicate": r, "status": "failed", "reason": store.failures[key]}
        for key in keys
        if key in store.failures
        for r in numbers
    ]
    return pd.DataFrame(rows)
