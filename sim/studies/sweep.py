"""Sweeps: many settings, several arms, paired seeds, one table that can be continued.

Example:
    rows = run_sweep(Sweep(groups=({"guard.tau_FR": (0.1, 0.3, 0.5)},)), "runs/tau", workers=2)

A folder has `sweep.json`, the definition, and `results.csv`, to which every job adds its rows as
soon as it is finished.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing.resource_tracker
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import joblib
import msgspec
import pandas as pd
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import BrokenProcessPool

from guard_core.rules import RULES
from lab.base.arms import BASELINE, GUARD, split_settings
from lab.base.columns import groups, select, where
from lab.base.errors import UserError
from lab.base.files import make_folder, whole
from lab.base.settings import check_unchanged, plain, to_values
from lab.compare.collection import RESULTS, read_sweep
from lab.measures import MEASURES
from lab.progress import Bar
from lab.signals import stop_with_parent, stops_held
from lab.trace.manifest import LOCK_NAME, locked, provenance
from sim.settings.config import Preset, SimConfig
from sim.settings.machine_code import compilation_shown, nothing_compiled
from sim.studies import jobs
from sim.studies.jobs import FACTS, FILES, Assignments, SweepJob, contents, perform

T = TypeVar("T")
R = TypeVar("R")

FILE = "sweep.json"
_MAX_CELLS = 1_000_000
_OUTCOME = ["replicate", "status", "reason", *MEASURES, *FACTS, "key"]

Pairs = Sequence[tuple[Assignments, SweepJob]]
"""What a row is called, by column, and the job that its numbers come from."""

STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Step sizes from which an arm chooses its best: from almost no training to where labels that are
kept for ever have gained all they can."""

_PAPER = {
    "tau_FR": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    "W": (2, 3, 5, 8, 12, 20),
    "beta_max": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
}
"""The paper varies one setting of the guard at a time, on Qwen2.5-7B and MATH-500, and prints the
range but not the points of tau_FR and beta_max: those are ours. With W = 5 the flip rate moves in
steps of .2, so all tau_FR in [.2, .4) are one and the same algorithm here."""

RULE_ARMS = ("ttrl", "guard", "memory", "frozen", "truth", *(n for n in RULES if n != BASELINE))
"""Every rule by itself and the named arms; `--arms` also takes RULE+guard and RULE+memory."""
_RULES = {"population": ("llama-math500", "qwen-math500"), "signal": (0.0, 0.3), "step": STEPS}
"""Two models, observations that know nothing and a little, and the steps every arm chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The settings that are run."""

    base: SimConfig = field(default_factory=SimConfig)
    """All that is not varied; its guard is that of the arm `guard`."""
    arms: tuple[str, ...] = (GUARD,)
    groups: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    """Grids: all combinations of the values in a group, one group after the other."""

    def __post_init__(self) -> None:
        plain = [{n: jobs.plain_values(n, v) for n, v in g.items()} for g in self.groups]
        object.__setattr__(self, "groups", tuple(plain))
        axes = (item for group in plain for item in group.items())
        jobs.check_grid(self.base, self.arms, axes)
        if not self.names:
            raise UserError("sweep: nothing to vary; give --vary name=values or --preset")
        for arm, name in itertools.product(self.arms, self.names):
            if name.rpartition(".")[2] in split_settings(arm)[1]:
                raise UserError(f"vary {name}: arm {arm} has its own; leave one of both out")
        n_cells = sum(math.prod(map(len, group.values())) for group in self.groups)
        if n_cells > _MAX_CELLS:
            raise UserError(f"sweep: {n_cells} cells, at most {_MAX_CELLS}; give fewer values")

    @property
    def names(self) -> list[str]:
        """Varied settings in order."""
        return list(dict.fromkeys(name for group in self.groups for name in group))

    def cells(self) -> list[tuple[str, Assignments]]:
        """Name of the group and values of the varied settings, of every cell in order."""
        return [
            (" x ".join(group), dict(zip(group, values, strict=True)))
            for group in self.groups
            for values in itertools.product(*group.values())
        ]

    def pairs(self, files: Mapping[str, str]) -> Pairs:
        """Every cell and arm with its job; a group keeps the settings that it does not vary."""
        usual = {name: jobs.read(self.base, name) for name in self.names}
        return [
            (
                {"cell": number, "group": group, **usual, **values, "arm": arm},
                jobs.job_of(self.base, values, arm, files),
            )
            for number, (group, values) in enumerate(self.cells())
            for arm in self.arms
        ]


def preset_settings(name: str) -> dict[str, Any]:
    """The population, size and replicates that a preset is meant for."""
    if name == "rules":
        # Fewer problems than the data sets have: the numbers are means over paired replicates.
        return {"n_problems": 200, "replicates": 16}
    return {"population": "qwen-math500", "replicates": 20}


def preset(name: Preset, base: SimConfig, arms: tuple[str, ...] = ()) -> Sweep:
    """A named sweep.

    Args:
        name: `sensitivity` (all three rows of the paper, 24 settings), one of its rows, or `rules`
            (every rule over step size, two populations and two strengths of what rules observe).
        base: all that is not varied, at best from `preset_settings`.
        arms: in place of TTRL and the guard, or all rules.
    """
    if name == "rules":
        return Sweep(base=base, arms=arms or RULE_ARMS, groups=(_RULES,))
    rows = _PAPER if name == "sensitivity" else {name: _PAPER[name]}
    groups = tuple({f"guard.{n}": v} for n, v in rows.items())
    return Sweep(base=base, arms=arms or (BASELINE, GUARD), groups=groups)


def run_sweep(
    sweep: Sweep, folder: Path | str, workers: int | None = None, *, progress: bool = False
) -> pd.DataFrame:
    """Run a sweep, or what is left of it; cells that failed are tried again.

    Args:
        folder: new or empty, or with an unfinished run of the same sweep, which is continued.
        workers: processes on this machine. If left out, joblib's active configuration decides:
            inside `joblib.parallel_config("dask")` the jobs run on a Dask cluster, by default one
            after the other in this process. Results do not depend on it.

    Returns:
        One row per cell, arm and replicate: cell, group, the varied settings, arm, replicate,
        status ("done" or "failed"), reason, the columns of `lab.measures.MEASURES`,
        step_factor, skip_rate, achieved_ratio (of controls), key (of the job). A failed cell has
        NaN numbers.
    """
    varied = [(n, v) for group in sweep.groups for n in FILES for v in group.get(n, ())]
    files = contents([*varied, *((n, getattr(sweep.base, n)) for n in FILES)])
    pairs = sweep.pairs(files)
    jobs.check_files(job.config for _, job in pairs if not job.reason)
    grid = {"arms": sweep.arms, "vary": sweep.groups}
    definition = {**grid, "settings": to_values(sweep.base), "files": files}
    with claimed(folder, definition, workers) as place:
        return run_jobs(pairs, place, workers, progress)


def check_workers(workers: int | None) -> None:
    """Refuse a number of processes below 1."""
    if workers is not None and workers < 1:
        raise UserError(f"workers = {workers}: must be at least 1")


@contextmanager
def claimed(
    folder: Path | str, definition: Mapping[str, Any], workers: int | None
) -> Iterator[Path]:
    """Hold the folder of a sweep: a new one, or one that holds the same sweep."""
    check_workers(workers)
    folder = Path(folder)
    path = folder / FILE
    definition = msgspec.json.decode(msgspec.json.encode(definition, enc_hook=plain))
    if path.exists():
        try:
            there = dict(msgspec.json.decode(path.read_bytes())["definition"])
            if "groups" in there:  # of an earlier version
                there["vary"] = list(dict(there.pop("groups")).values())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: is damaged ({error}); choose another folder") from error
        check_unchanged(folder, there, definition)
    else:
        make_folder(folder, lambda entry: entry.name == LOCK_NAME)
        facts = msgspec.json.encode({"definition": definition, **provenance()})
        with whole(path) as temporary:
            temporary.write_bytes(msgspec.json.format(facts, indent=2) + b"\n")
    with locked(folder):
        yield folder


def run_jobs(
    pairs: Pairs, folder: Path, workers: int | None, progress: bool, keeps_others: bool = False
) -> pd.DataFrame:
    """Run the jobs that are left: first plain arms, then the controls, which need their numbers.

    Each job's rows stand in `results.csv` as soon as it ends, and all in the order of `pairs` at
    the end, before those of other jobs if `keeps_others`. Returns the rows of these jobs.
    """
    path = folder / RESULTS
    by_key = {job.key: job for _, job in pairs}
    rows: dict[str, list[Assignments]] = {key: [] for key in by_key}
    for labels, job in pairs:
        rows[job.key].append(labels)
    there = read_sweep(folder) if path.exists() else pd.DataFrame({"key": []})
    outcomes = _finished(there, by_key)
    others = select(there, ~there["key"].isin(by_key)) if keeps_others else there.head(0)
    # A bar of visits, not cells: cells differ in size, and the remaining time is a rate's.
    total = sum(job.visits for job in by_key.values())
    initial = sum(by_key[key].visits for key in outcomes)
    bar = Bar(total=total, initial=initial, unit="visit", unit_scale=True, disable=not progress)
    try:
        _write(path, pairs, outcomes, others)
        with bar, compilation_shown(bar.set_postfix_str), path.open("a", encoding="utf-8") as file:
            if nothing_compiled():  # workers compile unseen
                bar.set_postfix_str("compiling")
            for outcome in _outcomes(by_key, outcomes, workers):
                key = str(outcome["key"].iloc[0])
                outcomes[key] = outcome
                file.write(_csv(rows[key], outcome))
                file.flush()
                bar.set_postfix_str(f"{len(outcomes)} runs", refresh=False)
                bar.update(by_key[key].visits)
    finally:
        _write(path, pairs, outcomes, others)
    made = read_sweep(folder)
    return select(made, made["key"].isin(by_key))


def _outcomes(
    by_key: Mapping[str, SweepJob], outcomes: Mapping[str, pd.DataFrame], workers: int | None
) -> Iterator[pd.DataFrame]:
    """Yield the outcome of every job that has none; a control whose arms failed fails with them."""
    for controls in (False, True):
        tasks = []
        for job in by_key.values():
            if job.key in outcomes or (job.control is not None) != controls:
                continue
            partners = [outcomes[key] for key in job.partners]
            failed = next(filter(None, (table["reason"].iloc[0] for table in partners)), "")
            if job.control is not None and failed:
                yield job.failed(f"{job.control.name}: its arms failed: {failed}")
            elif job.reason:
                yield job.failed(job.reason)
            else:
                tasks.append((job, partners))
        # Closed at once on Ctrl-C, so that the workers end before the results are written.
        with closing(pooled(perform, tasks, workers)) as finished:
            yield from finished


def pooled(do: Callable[[T], R], tasks: Sequence[T], workers: int | None) -> Generator[R]:
    """Yield the results of tasks in the order in which they end, see `run_sweep`."""
    if not tasks:
        return
    # One thread each: the workers themselves use the cores. They write nothing that another one
    # writes, and SIGTERM is blocked in them.
    end = partial(stop_with_parent, signal.SIGKILL)
    limits = {"inner_max_num_threads": 1, "initializer": end} if (workers or 1) > 1 else {}
    config = joblib.parallel_config("loky", n_jobs=workers, **limits) if workers else nullcontext()
    # Their first start unblocks signals, so they start before those are held back.
    for tracker in (multiprocessing.resource_tracker, loky_tracker):
        tracker.ensure_running()
    try:
        with config, stops_held():
            # One at a time, so that each is kept as soon as it ends.
            options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1}
            results: Any = joblib.Parallel(**options)(joblib.delayed(do)(t) for t in tasks)
        with closing(results):
            yield from results
    except BrokenProcessPool as error:
        raise UserError(
            "a worker was lost, perhaps for lack of memory; take fewer --workers or --replicates "
            "and repeat the command to continue"
        ) from error


def _finished(rows: pd.DataFrame, by_key: Mapping[str, SweepJob]) -> dict[str, pd.DataFrame]:
    """The outcomes among the rows of a sweep; failed jobs and torn ones are run again."""
    done = where(rows.reindex(columns=_OUTCOME), status="done")
    done = done.drop_duplicates(subset=["key", "replicate"])
    return {
        str(key): table
        for (key,), table in groups(done, ["key"])
        if key in by_key and len(table) == by_key[key].config.replicates
    }


def _write(
    path: Path, pairs: Pairs, outcomes: Mapping[str, pd.DataFrame], others: pd.DataFrame
) -> None:
    with whole(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(pd.DataFrame(columns=[*pairs[0][0], *_OUTCOME]).to_csv(index=False))
        made = ((labels, outcomes[job.key]) for labels, job in pairs if job.key in outcomes)
        file.writelines(_csv([labels], outcome) for labels, outcome in made)
        file.write(others.to_csv(index=False, header=False))


def _csv(rows: Sequence[Assignments], outcome: pd.DataFrame) -> str:
    parts = [outcome.reindex(columns=[*row, *_OUTCOME]).assign(**row) for row in rows]
    return pd.concat(parts).to_csv(index=False, header=False)
