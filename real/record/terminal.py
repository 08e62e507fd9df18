"""Output on the terminal: notices, results, the progress bar of several runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from real.ranks.launched import speaks


def say(notices: Iterable[str]) -> None:
    """Print notices, one line each, on stderr, from one of several ranks."""
    for notice in notices if speaks() else ():
        print(f"guard-train: notice: {notice}", file=sys.stderr)


def tell(lines: Iterable[str]) -> None:
    """Print results on stdout, from one of several ranks."""
    for line in lines if speaks() else ():
        print(line)


@contextmanager
def runs_bar(total: int, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Draw a bar from the first report on, so that refused settings leave one line alone."""
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


@contextmanager
def phases_bar(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Draw one bar per phase of a measurement, from its first report on."""
    bars: dict[str, Any] = {}

    def report(phase: str, done: float) -> None:
        if phase not in bars:
            for bar in bars.values():
                bar.close()
            form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
            bars[phase] = tqdm(desc=phase, total=1.0, bar_format=form, disable=quiet)
        bars[phase].update(done - bars[phase].n)

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()
