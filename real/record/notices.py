"""What a reader should know before a long run: on stderr at its start, in `run.json` for later."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from real.ranks.launched import speaks


def say(notices: Iterable[str]) -> None:
    """One line each on stderr, from one of several ranks."""
    for notice in notices if speaks() else ():
        print(f"guard-train: notice: {notice}", file=sys.stderr)


def tell(lines: Iterable[str]) -> None:
    """What came out of a run: on stdout, from one of several ranks."""
    for line in lines if speaks() else ():
        print(line)
