"""The progress bar of several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


@contextmanager
def runs_bar(total: int, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A bar that appears with the first report, so that refused settings leave one line alone."""
    form = "{l_bar}{bar}| {n:.1f}/{total} runs [{elapsed}<{remaining}]"
    bars: list[Any] = []

    def report(done: float) -> None:
        if not bars:
            bars.append(tqdm(total=total, bar_format=form, disable=quiet))
        bars[0].update(done - bars[0].n)

    try:
        yield report
    finally:
        for bar in bars:
            bar.close()
