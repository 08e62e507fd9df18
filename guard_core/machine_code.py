"""The guard's law as machine code, compiled by numba from its own source where numba is installed.

numba compiles a function again when the function's own file has changed, and looks at no other
file, though compiled functions here call functions and read constants of other modules. The cache
therefore lies in a folder named by a digest of all sources that compiled code can come from.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from guard_core import advantages, frs, labels, mps, rcsu, visit
from guard_core.config import GuardConfig, Settings, settings
from guard_core.votes import Array

COMPILED_FROM = 1_000
"""Rows of a call from which it is compiled; before the first such call, Python is done with fewer
rows sooner than numba is imported."""
_ROOT = Path(__file__).parents[1]
_NAME = "ttrl-guard-lab-"
_KEPT = 8
"""Folders that stay: the present one, and earlier ones for when their sources come back."""
_ENTRIES = ("prime_batches", "visit_batches")
"""Functions that are called from Python, and are therefore kept in the cache."""

_EXAMPLE = settings(GuardConfig(), 1, 1)._asdict()
_SETTINGS = np.dtype([(name, type(value)) for name, value in _EXAMPLE.items()], align=True)


@functools.cache
def law() -> SimpleNamespace:
    """Return the functions of the law as numba compiles them, at their first call.

    They may call each other; the modules stay as they are. Nothing here allocates an array, so
    reference counts are turned off (`_nrt=False`): counting those of the rows that the functions
    are given would take half of the time.
    """
    import numba

    modules = (labels, frs, mps, rcsu, advantages, visit)
    names = [module.__name__ for module in modules]
    njit: Any = numba.njit
    scope = {name: value for module in modules for name, value in vars(module).items()}
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if not Path(before).name.startswith(_NAME):
        use_own_cache("guard_core")
    for name, function in list(scope.items()):
        if isinstance(function, FunctionType) and function.__module__ in names:
            copy, inner = FunctionType(function.__code__, scope, name), {"inline": "always"}
            how: Any = {"cache": True, "nogil": True} if name in _ENTRIES else inner
            scope[name] = njit(_nrt=False, **how)(copy)
    numba.config.CACHE_DIR = before  # type: ignore[attr-defined]
    return SimpleNamespace(**scope)


_used = functools.cache(law)
"""The law for calls from Python; its own cache tells whether there was one."""


@functools.lru_cache
def records_of(s: Settings) -> Array:
    """(1,) record of the settings, one type whatever they are."""
    return np.array([s], _SETTINGS)


def memory_of(columns: dict[str, Array]) -> visit.Memory:
    """Copy the fields (B, P, ...) of a `GuardState`; those that are one number become records."""
    problems = np.empty(columns["label"].shape, visit.PROBLEM)
    for name in visit.PROBLEM.names or ():
        problems[name] = columns[name]
    floats = (np.array(columns[name], np.float64) for name in ("match_rates", "memory"))
    return visit.Memory(problems, np.array(columns["flips"], np.int8), *floats)


class Arrays:
    """The containers of the law in machine code, as `guard_core.visit.Lists`."""

    settings, memory = staticmethod(records_of), staticmethod(memory_of)

    @staticmethod
    def rows(array: Array) -> Array:
        """Return numbers of one of three types, since numba compiles for each of them anew."""
        kind = {"b": np.bool_, "f": np.float64}.get(array.dtype.kind, np.int64)
        return np.ascontiguousarray(array, kind)

    @staticmethod
    def visits(n_batches: int, n_problems: int) -> Array:
        """Make room for the records of visits."""
        return np.empty((n_batches, n_problems), visit.VISIT)

    @staticmethod
    def records(rows: Array, kind: np.dtype[np.void]) -> Array:
        """(B, P) records of problems or visits, as they are."""
        return rows


def road(n_rows: int) -> tuple[type[Arrays | visit.Lists], Any]:
    """Return the containers of a call with this many rows, and the law for them; same bits."""
    compiled = _used.cache_info().currsize > 0
    if n_rows >= COMPILED_FROM:
        compiled = importlib.util.find_spec("numba") is not None
    return (Arrays, _used()) if compiled else (visit.Lists, visit)


@functools.cache
def use_own_cache(*packages: str) -> None:
    """Point numba to the folder of the present sources, before any compiled function is defined.

    The folder lies in `NUMBA_CACHE_DIR` where the user set it, next to the last of the packages, or
    in the user's cache: in the first of them that can be written to. Otherwise it is a temporary
    one.
    """
    import numba

    name = _NAME + digest(_ROOT, *packages)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parents = [_ROOT / packages[-1] / "__pycache__", Path(cache)]
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        parents.insert(0, Path(given))
    folder = next((parent / name for parent in parents if _writable(parent / name)), None)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


def digest(root: Path, *packages: str) -> str:
    """Return 16 hexadecimal digits that change with any source file of the packages in `root`."""
    total = hashlib.sha256()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()[:16]


def _writable(folder: Path) -> bool:
    """Make the folder if needed; a new one takes the place of the oldest of its kind."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            others = sorted(folder.parent.glob(f"{_NAME}*"), key=lambda path: path.stat().st_mtime)
            for path in others[:-_KEPT]:
                shutil.rmtree(path, ignore_errors=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
