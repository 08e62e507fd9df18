"""Run folders found on disk, grouped into comparisons whose replicates are paired by seed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.base.arms import arm_order, title
from lab.base.columns import floats, ints, select, where
from lab.base.errors import UserError
from lab.base.files import REMOVED, Folders, check_folders
from lab.compare.families import arm_names, distinction, families, step_size
from lab.measures.fate import fates
from lab.trace.manifest import FILE_NAME, Manifest
from lab.trace.schema import TABLES, Table
from lab.trace.trace import Trace, load

PairKey = tuple[int, int]
"""Seed, and place among the replicates drawn from that seed: what two arms are paired by."""
WORLDS = {"sim": "Simulator", "real": "Real model"}
"""World to the name shown to readers."""
_READERS = 3
"""Folders that are read at once."""
_SWEPT = "cell,group,"
"""Start of the table of a sweep."""
GRID, RESULTS = "grid", "results.csv"
"""Folder of these runs in the comparison's; its table, a row per policy, step, arm, replicate."""
NULL, MEASURED = "independent", "measured"
"""Policies: the null model, in which no problem moves another; that which predicts real runs."""
_GRID_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("step", "replicate", "pass_start", "pass_final", "TotalDeg"), float),
    **dict.fromkeys(("policy", "arm", "status"), str),
}


def pair_keys(trace: Trace) -> dict[int, PairKey]:
    """Replicate number to the seed and place that it is paired by."""
    seeds, replicates = trace.run.seeds, trace.replicates
    if len(seeds) > max(replicates):
        return {r: (seeds[r], seeds[:r].count(seeds[r])) for r in replicates}
    return {r: (seeds[0] if seeds else 0, r) for r in replicates}


def together(traces: Sequence[Trace], pairs: Sequence[PairKey]) -> Trace:
    """One trace of the runs of one arm, replicates numbered by their place in sorted `pairs`."""
    number = {key: place for place, key in enumerate(pairs)}
    parts = [(trace, {r: number[key] for r, key in pair_keys(trace).items()}) for trace in traces]
    # By seed, whatever order the folders were found in.
    parts.sort(key=lambda part: min(part[1].values()))
    seeds = [seed for seed, _ in pairs]  # also where this arm has none: the place is the number
    first = parts[0][0]
    tables: dict[Table, Any] = {table: partial(_joined, parts, table) for table in TABLES}
    return Trace(**tables, run=replace(first.run, seeds=seeds), folder=first.folder)


def _joined(parts: list[tuple[Trace, dict[int, int]]], table: Table) -> pd.DataFrame:
    tables = []
    for trace, number in parts:
        rows = getattr(trace, table)
        new = rows["replicate"].map(number)
        known = new.notna().to_numpy()
        rows = rows if known.all() else rows[known]
        tables.append(rows.assign(replicate=new[known].astype(np.int16)))
    # A single table is the common case of a large run: joining would copy it.
    if len(tables) == 1:
        return tables[0].reset_index(drop=True)
    return pd.concat(tables, ignore_index=True)


@dataclass(frozen=True, slots=True)
class Grid:
    """Arms over step sizes; both tables have `step`, `arm`, `replicate` and metrics in percent."""

    rows: pd.DataFrame
    """With the policy of the comparison."""
    null: pd.DataFrame
    """With independent problems; no rows where that was not asked for."""
    failed: int = 0
    """Arms and steps whose runs failed."""
    folder: Path | None = None


def read_sweep(folder: Path | str) -> pd.DataFrame:
    """The rows of a sweep so far, also while it goes on or after it was killed.

    A varied setting without a value is `none`, as on the command line.
    """
    path = Path(folder) / RESULTS
    try:
        text = path.read_text(encoding="utf-8")
        # The last line of a killed sweep may be torn.
        rows = pd.read_csv(
            io.StringIO(text[: text.rfind("\n") + 1]),
            dtype={"key": str, "reason": str, "status": str},
            keep_default_na=False,
            na_values=[""],
        )
        settings = rows.columns[2 : rows.columns.get_loc("arm")]  # behind cell and group
        varied = {n: rows[n].astype(object).fillna("none") for n in settings if rows[n].hasnans}
        return rows.assign(reason=rows["reason"].fillna(""), **varied)
    except FileNotFoundError:
        raise UserError(f"{folder}: holds no sweep ({RESULTS} is missing)") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: is damaged ({error}); choose another folder") from error


def read_grid(folder: Path, run: Manifest) -> Grid | None:
    """The runs beside a comparison; None where there are none."""
    path = folder / GRID / RESULTS
    if not path.is_file():
        return None
    rows = read_sweep(path.parent)
    try:
        columns = _GRID_COLUMNS | {name: float for name in ("maj_start",) if name in rows}
        rows = pd.DataFrame({name: rows[name].astype(t) for name, t in columns.items()})
    except (KeyError, ValueError, TypeError) as error:
        damaged = f"{path}: is damaged ({type(error).__name__}); repeat its command"
        raise UserError(damaged) from error
    failed = where(rows, status="failed").drop_duplicates(["policy", "step", "arm"])
    known = np.isfinite(floats(rows, "step")) & np.isfinite(floats(rows, "replicate"))
    done = where(select(rows, known), status="done")
    done = done.drop_duplicates(["policy", "step", "arm", "replicate"], ignore_index=True)
    policy = str(run.config.get("policy"))
    null = where(done.head(0) if policy == NULL else done, policy=NULL)
    return Grid(where(done, policy=policy), null, len(failed), path.parent.resolve())


@dataclass(slots=True)
class Comparison:
    """All arms that were run on one task in one world."""

    world: str
    task: str
    traces: dict[str, Trace]
    """One trace per arm, all seeds in it; a replicate's number means the same seed in each."""
    runs: dict[str, list[Manifest]]
    """The manifests of the folders that each arm's trace was put together from."""
    pairs: list[PairKey]
    """Seed and place of each replicate number."""
    step_size: float | None = None
    """Peak learning rate, or step of the simulator, that all arms share; None if not noted."""
    family: int = 0
    """Comparisons of one family differ in their step size alone."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader, such as runs that did not finish."""
    grid: Grid | None = field(default=None, repr=False)
    """Runs at other step sizes and with independent problems that were made beside it."""
    metrics: pd.DataFrame | None = field(default=None, repr=False)
    """`lab.compare.tables.metrics`, once it was computed."""
    _fates: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """Name of the comparison for readers."""
        world = WORLDS.get(self.world, self.world)
        if self.manifests[0].config.get("policy") == MEASURED:
            world += ", predicting real runs"
        return f"{world}: {self.task}" if self.task else world

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order in which they are shown."""
        return list(self.traces)

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of all runs, arm by arm."""
        return [run for runs in self.runs.values() for run in runs]

    def fates(self, arm: str) -> pd.DataFrame:
        """`lab.fates` of an arm's replicates that can have fates by now, computed once."""
        if arm not in self._fates:
            self._fates[arm] = fates(self.traces[arm].visits, partial=True)
        return self._fates[arm]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A folder that was left out."""

    folder: Path
    reason: str


@dataclass(slots=True)
class Collection:
    """Comparisons under some folders, and folders that were skipped."""

    comparisons: list[Comparison]
    skipped: list[Skipped]


def collect(folders: Folders) -> Collection:
    """Read all run folders under the given one or ones, at any depth.

    A UserError where a given folder does not exist, or no run in them can be used.
    """
    folders = check_folders(folders)
    # Reading and decoding leave the interpreter free for another folder.
    with ThreadPoolExecutor(_READERS) as pool:
        runs = list(pool.map(_read_run, find_runs(folders)))
    traces = [run for run in runs if isinstance(run, Trace)]
    skipped = [run for run in runs if isinstance(run, Skipped)]
    comparisons, repeated = gather(traces)
    skipped += [*repeated, *_add_grids(comparisons, folders)]
    if not comparisons and not find_sweeps(folders):
        if skipped:
            raise UserError(skipped[0].reason)
        names = ", ".join(str(folder) for folder in folders) or "no folder"
        raise UserError(f"{names}: no run in it; give folders that a run was written to")
    return Collection(comparisons, skipped)


def _add_grids(comparisons: Sequence[Comparison], tops: Sequence[Path | str]) -> list[Skipped]:
    given = [Path(top).resolve() for top in tops]
    damaged = []
    for comparison in comparisons:
        places = {t.folder.resolve().parent for t in comparison.traces.values() if t.folder}
        if comparison.world != "sim" or len(places) != 1:
            continue
        (place,) = places
        try:
            if any((place / GRID).is_relative_to(top) for top in given):
                comparison.grid = read_grid(place, comparison.manifests[0])
        except UserError as error:
            damaged.append(Skipped(place / GRID, str(error)))
    return damaged


def find_runs(folders: Folders) -> list[Path]:
    """Folders that hold a run, or tables without its `run.json`; sorted, each once."""
    return _find(folders, lambda _, inner, files: FILE_NAME in files or "visits" in inner)


def find_sweeps(folders: Folders) -> list[Path]:
    """Folders that hold a sweep of settings or step sizes; sorted, each once."""
    return _find(folders, lambda place, _, files: RESULTS in files and _is_swept(place / RESULTS))


def _is_swept(path: Path) -> bool:
    if not path.is_file():  # a pipe of that name would never end
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(len(_SWEPT)) == _SWEPT


def _find(folders: Folders, wanted: Callable[[Path, list[str], list[str]], bool]) -> list[Path]:
    places: dict[Path, Path] = {}
    for top in map(Path, check_folders(folders)):
        for name, inner, files in os.walk(top):
            place = Path(name)
            if wanted(place, inner, files):
                places.setdefault(place.resolve(), place)
                inner.clear()
            # Others hold unfinished work: the search of matched effort, what a removal left.
            inner[:] = [n for n in inner if not (n.startswith(".") or n.endswith(REMOVED))]
    return [places[real] for real in sorted(places)]


def gather(traces: Sequence[Trace]) -> tuple[list[Comparison], list[Skipped]]:
    """Put traces that belong together into comparisons, one trace per arm.

    Runs belong together where they agree in world, task, step size and all settings that are not
    the arm's or the seed's, see `families`.

    Returns:
        The comparisons, and the runs that repeat a seed of an arm already there.
    """
    skipped: list[Skipped] = []
    comparisons = []
    together = families([trace.run for trace in traces])
    # The simulator first: it is the cheaper half of every comparison.
    together.sort(key=lambda family: (list(WORLDS).index(family.run.world), *family.key))
    for number, family in enumerate(together):
        runs = [traces[member] for member in family.members]
        # One name at all step sizes, at which an arm is compared with itself.
        named = list(zip(arm_names([trace.run for trace in runs]), runs, strict=True))
        steps = sorted({step_size(trace.run) for trace in runs}, key=lambda step: step or 0.0)
        for step in steps:
            of_step = f"step size {step or 0:g}" if len(steps) > 1 else ""
            parts = (family.run.task, distinction(family, together), of_step)
            group = [(arm, trace) for arm, trace in named if step_size(trace.run) == step]
            comparison = _compare(", ".join(filter(None, parts)), group, skipped)
            comparisons.append(replace(comparison, step_size=step, family=number))
    return comparisons, skipped


def _compare(task: str, group: list[tuple[str, Trace]], skipped: list[Skipped]) -> Comparison:
    by_arm: dict[str, dict[PairKey, Trace]] = {}
    kept: dict[str, list[Trace]] = {}
    for arm, trace in group:
        by_key = by_arm.setdefault(arm, {})
        keys = pair_keys(trace).values()
        if known := [key for key in keys if key in by_key]:
            folder, first = trace.folder or Path(trace.run.arm), by_key[known[0]].folder
            reason = (
                f"{folder}: repeats seed {known[0][0]} of arm {trace.run.arm}, already read from "
                f"{first}; give one of them"
            )
            skipped.append(Skipped(folder, reason))
            continue
        by_key.update(dict.fromkeys(keys, trace))
        kept.setdefault(arm, []).append(trace)
    pairs = sorted({key for by_key in by_arm.values() for key in by_key})
    arms = arm_order(kept)
    traces = {arm: together(kept[arm], pairs) for arm in arms}
    runs = {arm: [trace.run for trace in kept[arm]] for arm in arms}
    epochs = {arm: int(ints(trace.visits, "epoch").max()) for arm, trace in traces.items()}
    named = ", ".join(f"{title(arm)} {last} epochs" for arm, last in epochs.items())
    notes = [f"the arms differ in length: {named}"] if len(set(epochs.values())) > 1 else []
    comparison = Comparison(group[0][1].run.world, task, traces, runs, pairs, notes=notes)
    for run in comparison.manifests:
        if run.status != "finished":
            seeds = ", ".join(map(str, sorted(set(run.seeds))))
            state = "running or killed" if run.status == "running" else run.status
            far = f"{run.progress:.0%} of its steps"
            notes.append(f"{title(run.arm)}, seed {seeds}: {state} at {far}")
    return comparison


def _read_run(folder: Path) -> Trace | Skipped:
    try:
        trace = load(folder)
        for table in TABLES:  # now, so that damage inside leaves out one run and not all
            getattr(trace, table)
    except UserError as error:
        return Skipped(folder, str(error))
    keys, n_problems = ("replicate", "problem", "visit"), trace.run.n_problems
    replicate, problem, visit = (ints(trace.visits, name) for name in keys)
    last, damaged = problem.max(), f"{folder}: visits is damaged"
    if last >= n_problems:
        return Skipped(folder, f"{damaged} (problem {last} of {n_problems} problems)")
    # One key of 64 bits: see the bounds of `lab.trace.schema`.
    key = np.sort((replicate * (1 + last) + problem) * (1 + visit.max()) + visit)
    if (key[1:] == key[:-1]).any():
        return Skipped(folder, f"{damaged} (a visit of a problem is there twice)")
    return trace
