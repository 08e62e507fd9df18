"""`run.json`: what was run, with which settings, by which code, on what machine, how far it got."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from lab.errors import UserError
from lab.trace.schema import SCHEMA_VERSION

World = Literal["sim", "real"]
Status = Literal["running", "finished", "interrupted", "failed"]
FILE_NAME = "run.json"

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


@dataclass(slots=True)
class Manifest:
    """Description of a run for the readers of its tables."""

    world: World
    arm: str
    """Short name of the arm, see `lab.arms`."""
    title: str
    """Name of the arm for readers."""
    n_problems: int
    n_votes: int
    """V, votes per visit."""
    config: dict[str, Any] = field(default_factory=dict)
    """All settings as plain values."""
    seeds: list[int] = field(default_factory=list)
    """One per replicate, or one from which all replicates of the run were drawn.

    Runs of two arms are paired where these agree.
    """
    task: str = ""
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
        self.status, self.error, self.ended = status, error, now()
        if status == "finished":
            self.progress = 1.0


def encode(manifest: Manifest) -> bytes:
    """The manifest as indented JSON; NaN becomes null."""
    return msgspec.json.format(msgspec.json.encode(manifest, enc_hook=_plain), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """Read a run folder's `run.json`.

    Raises:
        UserError: the folder or the file is missing, damaged, of another program or newer.
    """
    try:
        content = (folder / FILE_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_why_none(folder)) from None
    except OSError as error:
        raise UserError(f"{folder}: {FILE_NAME} cannot be read ({error.strerror})") from error
    try:
        values = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{folder}: {FILE_NAME} is damaged ({error}); run it again") from error
    if not (isinstance(values, dict) and isinstance(values.get("schema_version"), int)):
        raise UserError(f"{folder}: {FILE_NAME} is not of this program; give a run folder")
    if values["schema_version"] > SCHEMA_VERSION:
        raise UserError(
            f"{folder}: written with schema {values['schema_version']}, this version reads up to "
            f"{SCHEMA_VERSION}; upgrade ttrl-guard-lab"
        )
    try:
        return msgspec.convert(values, Manifest)
    except msgspec.ValidationError as error:
        raise UserError(f"{folder}: {FILE_NAME} is damaged ({error}); run it again") from error


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


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}: cannot stand in {FILE_NAME}")


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return f"{folder}: no such folder; give a run folder"
    if not folder.is_dir():
        return f"{folder}: not a folder; give a run folder"
    if not any(folder.iterdir()):
        return f"{folder}: an empty folder; give a run folder"
    return f"{folder}: not a run folder ({FILE_NAME} is missing)"


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
