"""Short runs, some stopped on the way, and the comparison of traces to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lab.trace.trace import Trace
from real.settings.config import TrainConfig

QUICK = TrainConfig(n_problems=8, n_votes=8, n_samples=4, epochs=2, eval_every=0, lr=1e-3)
"""Settings of a short comparison."""
WORDS = ["--n-problems", "8", "--n-votes", "8", "--n-samples", "4", "--eval-every", "0"]
"""The same for a command line, apart from the length and the rate."""


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    """Folder of one run of a comparison."""
    return folder / arm / f"seed-{seed}"


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
