"""The folder of compiled functions of guard_core and sim, and the news that numba compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
from numba.core.event import Event, Listener, install_listener

PACKAGES = ("guard_core", "sim")
"""Packages that compiled code comes from, see `guard_core.machine_code.use_own_cache`."""


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
