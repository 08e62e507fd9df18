"""CPU and wall time of named parts of a work, each without the parts inside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Spent(NamedTuple):
    """Seconds; waiting and other processes count in `wall` alone."""

    cpu: float = 0.0
    """Of all threads of this process."""
    wall: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """The sum."""
        return Spent(self.cpu + other.cpu, self.wall + other.wall)

    def minus(self, other: Spent) -> Spent:
        """The difference."""
        return Spent(self.cpu - other.cpu, self.wall - other.wall)


def now() -> Spent:
    """Both clocks; only differences mean something."""
    return Spent(time.process_time(), time.perf_counter())


class Stopwatch:
    """Adds up the time of parts; a part that begins inside another one stops that one's time."""

    def __init__(self) -> None:
        self.parts: dict[str, Spent] = {}
        """In the order in which they first ended."""
        self._inside: list[Spent] = []

    @property
    def running(self) -> bool:
        """True while a part is being timed."""
        return bool(self._inside)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part; the same name adds up."""
        self._inside.append(Spent())
        start = now()
        try:
            yield
        finally:
            whole = now().minus(start)
            own = whole.minus(self._inside.pop())
            self.parts[name] = self.parts.get(name, Spent()).plus(own)
            if self._inside:
                self._inside[-1] = self._inside[-1].plus(whole)

    @property
    def total(self) -> Spent:
        """Of all parts."""
        found = Spent()
        for spent in self.parts.values():
            found = found.plus(spent)
        return found
