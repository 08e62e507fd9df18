"""The tables of `guard-sim theory`: the regime chart, and the chain compared with Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from sim.theory.chain import lock_in_chain, windows
from sim.theory.closed_form import lock_in_diffusion, window_closed_form
from sim.theory.flips import flip_rate_by_visit, single_flip_share
from sim.theory.monte_carlo import Interval, Runs, average, monte_carlo, proportion
from sim.theory.process import Process, check_cells, check_count, logit

CHART_P0 = (0.35, 0.4, 0.45, 0.48, 0.5, 0.52, 0.55, 0.6, 0.65, 0.7)
CHART_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

_CERTAIN = 0.01

COLUMNS = ("p0", "step", "quantity", "exact", "drawn", "low", "high", "closed_form", "inside")

_RATE_VISITS = 5


def regime_chart(
    p0: Sequence[float] = CHART_P0,
    step_sqrt_votes: Sequence[float] = CHART_STEPS,
    n_votes: int = 64,
    n_samples: int = 32,
    *,
    delta: float = 0.01,
    window: int = 5,
) -> pd.DataFrame:
    """Return the regimes over p0 and step * sqrt(V), one row per cell, from the exact chain.

    Args:
        p0: chances of the correct answer, in (0, 1).
        step_sqrt_votes: values of step * sqrt(V), which with V fixed stand for the step size.
        n_votes: V.
        n_samples: K.
        delta: an answer is extinct once it wins a vote with less than this probability.
        window: W in visits, which tells a slow regime from a sudden one.

    Returns:
        `p0`, `step_sqrt_votes`, `step`, `n_votes`, `n_samples`; `lost` (probability to end on the
        wrong answer); `lost_diffusion` and `lost_first_move`, the two limits of it; `form`, the
        limit that is closer; `visits` and `visits_lost` (means, see `Window`);
        `single_flip_share`; and `regime`: `kept` or `lost` where the end is 99 % certain, else
        `slow` where the extinction takes at least W visits on average, else `sudden`.

    Raises:
        UserError: a value is out of bounds, or a step is too small for the chain's grid.
    """
    check_cells(p0, step_sqrt_votes)
    rows = [
        row
        for scaled in step_sqrt_votes
        for row in _rows(p0, Process(scaled / math.sqrt(n_votes), n_votes, n_samples), delta)
    ]
    chart = pd.DataFrame(rows)
    chart["regime"] = np.select(
        [chart["lost"] < _CERTAIN, chart["lost"] > 1 - _CERTAIN, chart["visits"] >= window],
        ["kept", "lost", "slow"],
        "sudden",
    )
    return chart


def _rows(p0: Sequence[float], process: Process, delta: float) -> list[dict[str, object]]:
    x0_E = np.array([logit(p) for p in p0])
    lost_E = lock_in_chain(process).at(np.array(p0))
    first_E = process.wrong_first_move(x0_E)
    single_E = single_flip_share(np.array(p0), process)
    solved = windows(process, delta)
    rows = []
    for e, p in enumerate(p0):
        lost, first = float(lost_E[e]), float(first_E[e])
        diffusion = lock_in_diffusion(p, process.step, process.n_votes)
        near = solved.at(p)
        rows.append(
            {
                "p0": p,
                "step_sqrt_votes": process.step * math.sqrt(process.n_votes),
                "step": process.step,
                "n_votes": process.n_votes,
                "n_samples": process.n_samples,
                "lost": lost,
                "lost_diffusion": diffusion,
                "lost_first_move": first,
                "form": "diffusion" if abs(diffusion - lost) <= abs(first - lost) else "first move",
                "visits": near.visits,
                "visits_lost": near.visits_lost,
                "single_flip_share": float(single_E[e]),
            }
        )
    return rows


def monte_carlo_table(
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
    """Compare the chain with Monte Carlo in every cell of p0 x step.

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
        95 % interval `low`, `high`, `closed_form` (NaN where there is none), and `inside`, true
        where the interval holds the exact value.

    Raises:
        UserError: a value is out of bounds, or a step is too small for the chain's grid.
    """
    check_cells(p0, step)
    check_count("seed", seed, 0)
    rows = []
    for row, eta in enumerate(step):
        process = Process(eta, n_votes, n_samples)
        for column, p in enumerate(p0):
            rng = np.random.default_rng([seed, row, column])
            runs = monte_carlo(p, process, n_runs, rng=rng, max_visits=max_visits, delta=delta)
            for quantity, exact, drawn, closed in _quantities(p, process, runs, delta):
                inside = drawn.low <= exact <= drawn.high
                rows.append((p, eta, quantity, exact, *drawn, closed, inside))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def as_text(table: pd.DataFrame) -> str:
    """The table of `monte_carlo_table` as plain text, with a count of agreements below it."""
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
) -> Iterator[tuple[str, float, Interval, float]]:
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
