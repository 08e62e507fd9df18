"""Output on the terminal: notices, results, the progress bar of several runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from real.ranks.launched import speaks

_said: ContextVar[set[str] | None] = ContextVar("said", default=None)
_send: ContextVar[Callable[[str], object] | None] = ContextVar("send", default=None)


def say(notices: Iterable[str], source: str = "") -> None:
    """Print notices, one line each, on stderr, from one of several ranks.

    Args:
        notices: one sentence each.
        source: put before them, such as the name of one of several runs.
    """
    said, send = _said.get(), _send.get()
    for notice in notices if speaks() else ():
        if send is not None:
            send(notice)
        elif said is None or notice not in said:
            # Above a bar, if there is one.
            tqdm.write(f"guard-train: notice: {source}{notice}", file=sys.stderr)
        if said is not None:
            said.add(notice)


@contextmanager
def said_once() -> Iterator[None]:
    """Print each notice once, from the outermost such context on."""
    said = _said.get()
    token = _said.set(set() if said is None else said)
    try:
        yield
    finally:
        _said.reset(token)


@contextmanager
def advice_when_stopped(advice: str) -> Iterator[None]:
    """Print how to go on where the work within is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        say([f"to go on: {advice}"])
        raise


def send_notices(send: Callable[[str], object]) -> None:
    """Pass all further notices of this process on, in place of printing them."""
    _send.set(send)


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
            bars.append(tqdm(total=total, initial=done, bar_format=form, disable=quiet))
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
