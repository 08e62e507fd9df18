"""`run.json`: what was run, with which settings, by which code, on what machine, how far it got."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lab.base.errors import UserError
from lab.base.settings import plain
from lab.trace.schema import MOST, SCHEMA_VERSION, Table

World = Literal["sim", "real"]
Status = Literal["running", "finished", "interrupted", "failed"]
FILE_NAME = "run.json"
_MOST_BYTES, _MOST_SEEDS, _DEEPEST = 16 << 20, 1 << 15, 20
_LONGEST_NAME, _LONGEST_TEXT, _MOST_NAMES = 1000, 100_000, 10_000
_LARGEST = 10**300
Name = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


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
    def new(
        cls,
        world: World,
        arm: str,
        title: str,
        *,
        n_problems: int,
        n_votes: int,
        config: dict[str, Any],
        seeds: list[int],
        task: str = "",
        backend: str = "",
        extra: dict[str, Any] | None = None,
    ) -> Manifest:
        """The manifest of a run that starts now, with its provenance filled in."""
        started = now()
        return cls(
            world=world,
            arm=arm,
            title=title,
            n_problems=n_problems,
            n_votes=n_votes,
            config=config,
            seeds=seeds,
            task=task,
            backend=backend,
            versions=versions(),
            commit=commit(),
            machine=machine(),
            command=command(),
            started=started,
            updated=started,
            extra=dict(extra or {}),
        )

    def go_on(self) -> None:
        """Note that the run is taken up again."""
        self.status, self.error, self.ended = "running", None, None

    def end(self, status: Status, error: str | None = None) -> None:
        """Note how and when the run ended."""
        # A clock may have been set back since.
        self.status, self.error, self.ended = status, error, max(now(), self.started)
        if status == "finished":
            self.progress = 1.0

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
    try:
        content = msgspec.json.encode(manifest, enc_hook=plain)
    except UnicodeEncodeError:  # the name of a file or folder, which may hold any bytes
        content = msgspec.json.encode(_utf8(msgspec.to_builtins(manifest, enc_hook=plain)))
    return msgspec.json.format(content, indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """Read a run folder's `run.json`.

    Raises:
        UserError: the folder or the file is missing, damaged, of another program or newer.
    """
    try:
        values = msgspec.json.decode(_content(folder))
        _check_sizes(values)
    except RecursionError:
        raise UserError(f"{folder}: {FILE_NAME} is damaged (nested too deep)") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{folder}: {FILE_NAME} is damaged ({error}); run it again") from error
    if not (isinstance(values, dict) and isinstance(values.get("schema_version"), int)):
        raise UserError(f"{folder}: {FILE_NAME} is not of this program; give a run folder")
    if values["schema_version"] > SCHEMA_VERSION:
        raise UserError(
            f"{folder}: written with schema {values['schema_version']}, this version reads up to "
            f"{SCHEMA_VERSION}; upgrade ttrl-guard-lab"
        )
    try:
        found = msgspec.convert(values, Manifest)
        msgspec.convert(found.extra.get("notices"), list[str] | None)
    except msgspec.ValidationError as error:
        raise UserError(f"{folder}: {FILE_NAME} is damaged ({error}); run it again") from error
    return found


def _content(folder: Path) -> bytes:
    path = folder / FILE_NAME
    try:
        # A pipe would be waited for.
        if path.exists() and not path.is_file():
            raise UserError(f"{folder}: {FILE_NAME} is no file; give a run folder")
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{folder}: {FILE_NAME} has more than {_MOST_BYTES >> 20} MB")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_why_none(folder)) from None
    except OSError as error:
        raise UserError(f"{folder}: {FILE_NAME} cannot be read ({error.strerror})") from error


def _check_sizes(values: Any) -> None:
    """Refuse what no run notes and a report could not show.

    Raises:
        ValueError: a text or number is too long, or names or nesting are too many.
    """
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


def _utf8(value: Any) -> Any:
    """Plain values with escapes for bytes that are not UTF-8."""
    if isinstance(value, dict):
        return {_utf8(key): _utf8(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_utf8(own) for own in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return f"{folder}: no such folder; give a run folder"
    if not folder.is_dir():
        return f"{folder}: not a folder; give a run folder"
    if not any(folder.iterdir()):
        return f"{folder}: an empty folder; give a run folder"
    return f"{folder}: not a run folder ({FILE_NAME} is missing)"


_PACKAGES = {
    "ttrl-guard-lab": "guard_core",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "scipy": "scipy",
    "numba": "numba",
    "torch": "torch",
    "transformers": "transformers",
    "math-verify": "math_verify",
    "vllm": "vllm",
}
"""Distribution name to the module whose presence shows that the run used it."""


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that this process has loaded."""
    found = {"python": platform.python_version()}
    for package, module in _PACKAGES.items():
        if module in sys.modules and (version := _version(package)):
            found[package] = version
    return found


@functools.cache
def _version(package: str) -> str | None:
    """None where it was not installed as a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")
