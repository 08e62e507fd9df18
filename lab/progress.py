"""Progress on stderr: a bar on a terminal, a plain line every 5 % elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

_LINES = 20  # plain ones of a whole piece of work
_DRAWS, _BURST = 2.0, 8
"""Most redraws of a bar per second, on average, and in addition, for the phases of a start."""


class Bar(tqdm):
    """A `tqdm` for terminals, log files and pipes.

    The time left follows from the mean rate since the first step was done: the start, the
    measurement before training and compilation would spoil it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start with the arguments of `tqdm`; only the first three may stand without a name."""
        self._plain = not sys.stderr.isatty()
        self._made, self._draws = time.monotonic(), 0
        self._first: tuple[float, float] | None = None
        self._mark: int | None = None
        kept = {"leave": False, "mininterval": 0} if self._plain else {"mininterval": 1}
        super().__init__(*args, **(kept | {"miniters": 0, "smoothing": 0} | options))

    def update(self, n: float | None = 1) -> bool | None:
        """Count steps that were done."""
        shown = super().update(n)
        if self._first is None and not self.disable and self.n > self.initial:
            self._first = (time.monotonic(), self.n)
        return shown

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or write a line, where one is due."""
        if self._plain:
            self._write_line()
            return
        most = _BURST + _DRAWS * (time.monotonic() - self._made)
        if self.disable or self._draws < most:  # it is disabled while it closes
            self._draws += 1
            super().display(msg, pos)

    def clear(self, nolock: bool = False) -> None:
        """Make room for other output; lines need none."""
        if not self._plain:
            super().clear(nolock)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Values of the bar's format; the rate is 0 until it is known."""
        done = 0.0 if self._first is None else self.n - self._first[1]
        seconds = 0.0 if self._first is None else time.monotonic() - self._first[0]
        return {**super().format_dict, "rate": done / seconds if done and seconds else 0.0}

    def _write_line(self) -> None:
        mark = int(_LINES * self.n / self.total) if self.total else 0
        due = self._mark is not None and mark > self._mark
        self._mark = mark
        if not due:
            return
        values = self.format_dict
        rate, left = values["rate"], self.total - self.n
        parts = [
            f"{self.unit} {round(self.n, 1)}/{self.total}",
            values["postfix"],
            f"{self.format_interval(left / rate)} left" if rate and left else "",
        ]
        head = f"{self.n / self.total:4.0%} {self.desc.removesuffix(': ')}".rstrip()
        self.fp.write(f"{head}  {', '.join(part for part in parts if part)}\n")
        self.fp.flush()
