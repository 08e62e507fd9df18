"""Runs that are stopped on the way, and the comparison of traces to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from lab.trace.trace import Trace


class Stopped(Exception):
    """Raised by the function that is called with a run's progress."""


def stop_at(share: float) -> Callable[[float], None]:
    def report(done: float) -> None:
        if done >= share:
            raise Stopped(f"stopped at {done}")

    return report


def timeless(trace: Trace, without: tuple[str, ...] = ()) -> pd.DataFrame:
    """The steps without the columns of the clock."""
    return trace.steps[[n for n in trace.steps if "second" not in n and n not in without]]


def check_same(first: Trace, second: Trace) -> None:
    for table in ("visits", "evals", "votes", "answers"):
        pair = getattr(first, table), getattr(second, table)
        pd.testing.assert_frame_equal(*pair, check_exact=True)
    assert not first.answers.empty
    pd.testing.assert_frame_equal(timeless(first), timeless(second), check_exact=True)
