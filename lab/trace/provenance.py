"""Provenance of a run: time, versions, commit, machine and command line."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
