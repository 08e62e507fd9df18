"""A run folder without its rows: `run.json`, the names of the tables' parts, and the lock.

`run.json` says what was run, with which settings, by which code, on what machine, and how far it
got. A table lies in numbered Parquet parts. No library that reads them is imported here, so that
commands can look at a folder at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lab.base.errors import UserError, refusing
from lab.base.files import TEMPORARY, whole
from lab.base.settings import plain
from lab.trace.schema import MOST, SCHEMA_VERSION, TABLES, Table

World = Literal["sim", "real"]
Status = Literal["running", "finished", "interrupted", "failed"]
FILE_NAME, LOCK_NAME = "run.json", ".lock"
CHECKPOINTS = "checkpoints"
"""Folder of what a run can be gone on with from, if it keeps any."""
_MOST_BYTES, _MOST_SEEDS, _DEEPEST = 1 << 28, 1 << 15, 20  # the names of millions of problems
_LONGEST_NAME, _LONGEST_TEXT, _MOST_NAMES = 1000, 100_000, 10_000
_LARGEST = 10**300
Name = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_PACKAGES = "ttrl-guard-lab numpy pandas pyarrow scipy numba torch transformers python-flint vllm"
"""Distributions that a run may have used, as the presence of their module shows."""
_MODULES = {"ttrl-guard-lab": "guard_core", "python-flint": "flint"}
_version = functools.cache(importlib.metadata.version)


@dataclass(frozen=True, slots=True)
class Extent:
    """Numbers of parts and rows of a table."""

    parts: Annotated[int, msgspec.Meta(ge=0)] = 0
    rows: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass(slots=True)
class Manifest:
    """Description of a run for the readers of its tables."""

    world: World
    arm: Annotated[str, msgspec.Meta(pattern=rf"^[^\x00-\x1f\x7f]{{1,{_LONGEST_NAME}}}$")]
    """Short name of the arm, see `lab.base.arms`."""
    title: Name
    """Name of the arm for readers."""
    n_problems: Count
    n_votes: Count
    """V, votes per visit."""
    config: dict[str, Any] = field(default_factory=dict)
    """All settings as plain values."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Names of settings by role, see `lab.base.roles`; empty in runs of earlier versions."""
    seeds: Annotated[list[int], msgspec.Meta(max_length=_MOST_SEEDS)] = field(default_factory=list)
    """One per replicate, or one from which all replicates of the run were drawn.

    Runs of two arms are paired where these agree.
    """
    task: Name = ""
    """Name of the task; only runs of one task are compared."""
    backend: str = ""
    """Library or engine that did the work, such as `numba` or `transformers on cpu`."""
    schema_version: int = SCHEMA_VERSION
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    started: str = ""
    updated: str = ""
    ended: str | None = None
    status: Status = "running"
    progress: float = 0.0
    """Share of the planned steps that were made, 0 to 1."""
    tables: dict[Table, Extent] = field(default_factory=dict)
    """Extent of each table on disk; readers refuse a finished run that differs from it."""
    error: str | None = None
    """First line of the error that ended a failed run."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Facts of one arm, such as `step_factor` and `achieved_ratio`."""

    @classmethod
    def new(cls, world: World, arm: str, title: str, **others: Any) -> Manifest:
        """The manifest of a run that starts now, provenance filled in, with some other fields."""
        facts = provenance()
        return cls(world, arm, title, updated=facts["started"], **facts, **others)

    def end(self, status: Status, error: str | None = None) -> None:
        """Note how the run ended, and that it ended now."""
        # A clock may have been set back since.
        self.status, self.error, self.ended = status, error, max(now(), self.started)
        if status == "finished":
            self.progress = 1.0

    @property
    def draws_problems(self) -> bool:
        """The problems depend on the seed, unlike those of a real or a measured model."""
        return "fixed_population" in self.config and self.config.get("policy") != "measured"

    @property
    def redraws_problems(self) -> bool:
        """Every replicate has problems of its own."""
        return self.draws_problems and not self.config["fixed_population"]

    @property
    def minutes(self) -> float:
        """From start to end; NaN where not noted, or where the clock was set back between them."""
        try:
            start, end = (datetime.fromisoformat(t or "") for t in (self.started, self.ended))
            seconds = (end - start).total_seconds()
        except (ValueError, TypeError):
            return math.nan
        return seconds / 60 if seconds >= 0 else math.nan


def encode(manifest: Manifest) -> bytes:
    """The manifest as indented JSON; NaN becomes null, a byte that is not UTF-8 an escape."""
    values = _utf8(msgspec.to_builtins(manifest, enc_hook=plain))
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a run folder's `run.json`, whole or not at all."""
    with whole(folder / FILE_NAME) as temporary:
        temporary.write_bytes(encode(manifest))


def _utf8(value: Any) -> Any:
    """Plain values whose texts can be encoded; names of files may hold any bytes."""
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def read_manifest(folder: Path) -> Manifest:
    """Read a run folder's `run.json`.

    A UserError where the folder or the file is missing, damaged, of another program or newer.
    """
    path = folder / FILE_NAME
    try:
        # A pipe would be waited for.
        if path.exists() and not path.is_file():
            raise UserError(f"{folder}: {FILE_NAME} is no file; give a run folder")
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{folder}: {FILE_NAME} has more than {_MOST_BYTES >> 20} MB")
        values = msgspec.json.decode(path.read_bytes())
        _check_sizes(values)
        if not (isinstance(values, dict) and isinstance(values.get("schema_version"), int)):
            raise UserError(f"{folder}: {FILE_NAME} is not of this program; give a run folder")
        if values["schema_version"] > SCHEMA_VERSION:
            raise UserError(
                f"{folder}: written with schema {values['schema_version']}, this version reads up "
                f"to {SCHEMA_VERSION}; upgrade ttrl-guard-lab"
            )
        manifest = msgspec.convert(values, Manifest)
        msgspec.convert(manifest.extra.get("notices"), list[str] | None)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: {_why_none(folder)}") from None
    except OSError as error:
        raise UserError(f"{folder}: {FILE_NAME} cannot be read ({error.strerror})") from error
    except RecursionError:
        raise UserError(f"{folder}: {FILE_NAME} is damaged (nested too deep)") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise UserError(f"{folder}: {FILE_NAME} is damaged ({error}); run it again") from error
    return manifest


def _why_none(folder: Path) -> str:
    if folder.is_dir() and any(folder.iterdir()):
        return f"not a run folder ({FILE_NAME} is missing)"
    kind = "an empty folder" if folder.is_dir() else "not a folder"
    return f"{kind if folder.exists() else 'no such folder'}; give a run folder"


def _check_sizes(values: Any) -> None:
    """Refuse what no run notes and a report could not show (ValueError)."""
    n_names, left = 0, [(0, values)]
    while left:
        depth, value = left.pop()
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        if isinstance(value, dict):
            n_names += len(value)
            left += [(depth + 1, item) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            left += [(depth + 1, item) for item in value]
        elif isinstance(value, str) and len(value) > _LONGEST_TEXT:
            raise ValueError(f"a text of {len(value)} letters")
        elif isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError("a number of more than 300 digits")
    if n_names > _MOST_NAMES:
        raise ValueError(f"{n_names} names, at most {_MOST_NAMES} are read")


def provenance() -> dict[str, Any]:
    """The time, the command, the code and the machine of work that starts now."""
    made = {"started": now(), "command": command(), "commit": commit()}
    return made | {"versions": versions(), "machine": machine()}


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that this process has loaded."""
    loaded = {"python": platform.python_version()}
    for package in _PACKAGES.split():
        if _MODULES.get(package, package) in sys.modules:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                loaded[package] = _version(package)
    return loaded


@functools.cache
def commit() -> str | None:
    """Git commit of this code, with `-dirty` where it was changed; None outside a repository."""
    here = Path(__file__).resolve().parent
    # An installed copy may lie inside somebody else's repository, which does not track it.
    if _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git(here, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


@functools.cache
def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and platform; no name and no path of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": next(models, platform.processor() or "unknown"),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def command() -> str:
    """The command line that started this process, its program without a path."""
    program, *options = sys.argv or [""]
    path = Path(program)
    if program in ("", "-c"):
        return "python"
    if path.name == "__main__.py":
        return shlex.join(["python", "-m", path.parent.name, *options])
    if path.name.startswith("ipykernel"):
        return "notebook"
    return shlex.join([path.name, *options])


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the hold ends with the process, however that ends.

    A UserError where another process holds it. A system without such locks holds nothing.
    """
    if os.name != "posix":
        yield
        return
    import fcntl

    with refusing(f"{folder}: cannot be written", "give a run folder"):
        file = (folder / LOCK_NAME).open("w")
    with file:
        with refusing(f"{folder}: cannot be locked", "move it to another disk"):
            try:
                # Not flock: a forked child would share it, and keep it when this process is killed.
                fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held = "another process writes this run; wait for it or end it"
                raise UserError(f"{folder}: {held}") from None
        yield


def part_name(number: int) -> str:
    """Name of a part's file."""
    return f"part-{number:05d}.parquet"


def _part_numbers(folder: Path, table: str) -> set[int]:
    """Numbers of the complete parts; names of a killed writer's temporary files do not match."""
    place = folder / table
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    matches = (re.fullmatch(r"part-(\d{5,})\.parquet", name) for name in names)
    return {int(match[1]) for match in matches if match}


def parts_of(folder: Path, table: str, n_parts: int | None = None) -> list[Path]:
    """Return a table's first parts in order; all complete ones if None.

    A UserError where one is missing before the last one, or the folder cannot be read.
    """
    with refusing(f"{folder}: {table} cannot be read"):
        there = _part_numbers(folder, table)
    wanted = range(len(there) if n_parts is None else n_parts)
    if gaps := sorted({*wanted} - there):
        raise UserError(f"{folder}: {table}/{part_name(gaps[0])} is missing; copy the folder whole")
    return [folder / table / part_name(number) for number in wanted]


def cut_back(folder: Path, table: str, n_parts: int) -> None:
    """Delete all but a table's first parts, the last one first: never leave a gap."""
    place = folder / table
    with refusing(f"{folder}: {table} cannot be cut back", "make the folder writable"):
        place.mkdir(exist_ok=True)
        for number in sorted(_part_numbers(folder, table), reverse=True):
            if number >= n_parts:
                (place / part_name(number)).unlink()
        for path in place.glob(f"*{TEMPORARY}"):
            path.unlink()


def make_tables(path: Path) -> None:
    """Make a run folder with a folder for each table; refusals as of `check_new`."""
    check_new(path)
    with _making(path):
        for table in TABLES:
            (path / table).mkdir(parents=True, exist_ok=True)


def check_new(path: Path) -> None:
    """Refuse a folder in which no new run can be made."""
    with _making(path):
        if (path / FILE_NAME).exists():
            raise UserError(f"{path}: already holds a run; {_remedy(path)}")
        if path.exists() and not is_unused(path):
            what = "is not empty" if path.is_dir() else "is a file"
            raise UserError(f"{path}: {what}; choose another folder")


def _remedy(path: Path) -> str:
    try:
        run = read_manifest(path)
    except UserError:
        return "choose another folder"
    if run.world == "real" and run.status != "finished" and run.config.get("checkpoint_every") != 0:
        command = f"guard-train resume {shlex.quote(str(path))}"
        step = run.tables.get("steps", Extent()).rows
        return f"stopped at step {step}, go on with {command}, or choose another folder"
    return "choose another folder or delete it"


def _making(path: Path) -> AbstractContextManager[None]:
    return refusing(f"{path}: cannot be made", "choose a folder you may write to")


def is_unused(path: Path) -> bool:
    """Return whether a folder holds nothing, or what is left of a run killed before `run.json`.

    That is empty tables, and logs of engines, which start before the run.
    """
    if not path.is_dir():
        return False
    left = (f"*{TEMPORARY}", "engine-rank*.log")
    entries = [e for e in path.iterdir() if not any(fnmatch(e.name, name) for name in left)]
    return all(e.name in TABLES and e.is_dir() and not any(e.iterdir()) for e in entries)
