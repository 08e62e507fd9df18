"""Theory beside Monte Carlo: the same quantities from the chain, from draws, and in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from sim.theory.chain import lock_in_chain, windows
from sim.theory.diffusion import lock_in_diffusion, window_closed_form
from sim.theory.flips import flip_rate_by_visit, single_flip_share
from sim.theory.monte_carlo import Estimate, Runs, average, monte_carlo, proportion
from sim.theory.process import Process, check_cells, check_count

COLUMNS = ("p0", "step", "quantity", "exact", "drawn", "low", "high", "closed_form", "inside")

_RATE_VISITS = 5


def beside_monte_carlo(
    p0: Sequence[float],
    step: Sequence[float],
    n_votes: int,
    n_samples: int,
    *,
    n_runs: int = 20_000,
    seed: int = 0,
    max_visits: int = 2000,
    delta: float = 0.01,
) -> pd.DataFrame:
    """Compare the chain with drawn problems in every cell of p0 x step.

    Args:
        p0: chances of the correct answer, in (0, 1).
        step: logit steps per unit of standardised advantage.
        n_votes: V.
        n_samples: K.
        n_runs: problems drawn per cell.
        seed: of the draws; every cell has random numbers of its own.
        max_visits: the most visits of one problem.
        delta: an answer is extinct once it wins a vote with less than this probability.

    Returns:
        One row per cell and quantity: `p0`, `step`, `quantity`, `exact` (chain), `drawn` with its
        95 % interval `low`, `high`, `closed_form` (NaN where there is none), and `inside`, whether
        the interval holds the exact value.

    Raises:
        UserError: a value is out of bounds, or a step is too small for the chain's grid.
    """
    check_cells(p0, step)
    check_count("seed", seed, 0)
    rows = []
    for place, eta in enumerate(step):
        process = Process(eta, n_votes, n_samples)
        for other, p in enumerate(p0):
            rng = np.random.default_rng([seed, place, other])
            runs = monte_carlo(p, process, n_runs, rng=rng, max_visits=max_visits, delta=delta)
            for quantity, exact, drawn, closed in _quantities(p, process, runs, delta):
                inside = drawn.low <= exact <= drawn.high
                rows.append((p, eta, quantity, exact, *drawn, closed, inside))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def as_text(table: pd.DataFrame) -> str:
    """The table of `beside_monte_carlo` as plain text, with a count of agreements below it."""
    head = f"{'p0':>5} {'step':>7}  {'quantity':<28} {'exact':>9} {'drawn':>9}"
    lines = [f"{head}  {'95 % interval':^19} {'closed form':>12}"]
    for row in table.itertuples(index=False, name=None):
        p0, step, quantity, exact, drawn, low, high, closed, inside = row
        mark = " " if inside or math.isnan(low) else "*"
        numbers = f"{_number(exact)} {_number(drawn)}{mark} [{_number(low)},{_number(high)}]"
        lines.append(f"{p0:5.3g} {step:7.4g}  {quantity:<28} {numbers} {_number(closed):>11}")
    known = [
        inside
        for low, inside in zip(table["low"], table["inside"], strict=True)
        if not math.isnan(low)
    ]
    lines.append(
        f"The 95 % interval holds the exact value in {sum(known)} of {len(known)} rows; "
        "* marks the others, and about 1 in 20 is expected."
    )
    return "\n".join(lines)


def _quantities(
    p0: float, process: Process, runs: Runs, delta: float
) -> Iterator[tuple[str, float, Estimate, float]]:
    """Name, exact value, drawn value and closed form of each quantity."""
    lost = float(lock_in_chain(process).at(p0))
    diffusion = lock_in_diffusion(p0, process.step, process.n_votes)
    yield "P(ends wrong)", lost, proportion(runs.lost_R), diffusion
    near = windows(process, delta).at(p0)
    closed = window_closed_form(p0, process.step, process.n_votes, delta)
    done_R = runs.extinct_at_R >= 0
    yield "visits to lock-in", near.visits, average(runs.extinct_at_R[done_R]), closed
    lost_R = done_R & runs.extinct_wrong_R
    yield "visits to lock-in if lost", near.visits_lost, average(runs.extinct_at_R[lost_R]), closed
    rate = float(flip_rate_by_visit(p0, process, _RATE_VISITS)[-1])
    n_flipped = round(runs.flip_rate_T[_RATE_VISITS - 1] * runs.lost_R.size)
    flipped_R = np.arange(runs.lost_R.size) < n_flipped
    yield f"flip rate at visit {_RATE_VISITS}", rate, proportion(flipped_R), math.nan
    single = float(single_flip_share(p0, process))
    once_R = runs.flips_R[runs.degraded_R] == 1
    yield "one flip only, if degraded", single, proportion(once_R), math.nan


def _number(value: float) -> str:
    if math.isnan(value):
        return f"{'-':>9}"
    return f"{value:9.4f}" if abs(value) < 10 else f"{value:9.2f}"
