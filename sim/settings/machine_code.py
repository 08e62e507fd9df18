"""The folder of numba's compiled functions, one per state of the source code.

numba compiles a function again when the function's own file has changed, and looks at no other
file, though compiled functions here call functions and read constants of other modules. The cache
therefore lies in a folder named by a digest of all sources that compiled code can come from.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
from numba.core.event import Event, Listener, install_listener

_NAME = "ttrl-guard-lab-"
_KEPT = 8
"""Folders that stay: the present one, and earlier ones for when their sources come back."""


@functools.cache
def use_own_cache() -> Path:
    """Point numba to the folder of the present sources, before any compiled function is defined.

    The folder lies in `NUMBA_CACHE_DIR` where the user set it, next to the package, or in the
    user's cache: in the first of them that can be written to. Otherwise it is a temporary one.
    """
    name = _NAME + digest(Path(__file__).parents[2])
    folder = next((parent / name for parent in _parents() if _writable(parent / name)), None)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder


def nothing_compiled() -> bool:
    """Return True while the folder holds no compiled function, as on first use."""
    return not any(Path(numba.config.CACHE_DIR).rglob("*.nbi"))  # type: ignore[attr-defined]


@contextmanager
def compilation_shown(show: Callable[[str], object]) -> Iterator[None]:
    """Call `show` with "compiling" where this process starts to compile, and with "" at the end."""
    with install_listener("numba:compile", _Shown(show)):
        yield


class _Shown(Listener):
    """Compilations, of which one may start within another."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show, self._depth = show, 0

    def on_start(self, event: Event, step: int = 1) -> None:
        self._depth += step
        self._show("compiling" if self._depth else "")

    def on_end(self, event: Event) -> None:
        self.on_start(event, -1)


def digest(root: Path) -> str:
    """Return 16 hexadecimal digits that change with any source file of guard_core and sim."""
    total = hashlib.sha256()
    for package in ("guard_core", "sim"):
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()[:16]


def _parents() -> Iterator[Path]:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given)
    yield Path(__file__).parents[1] / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


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
