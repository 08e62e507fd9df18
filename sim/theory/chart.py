"""The regime chart: over p0 and step * sqrt(V), who loses, how fast, and which formula holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from sim.theory.chain import lock_in_chain, windows
from sim.theory.diffusion import lock_in_diffusion
from sim.theory.flips import single_flip_share
from sim.theory.process import Process, check_cells, logit

CHART_P0 = (0.35, 0.4, 0.45, 0.48, 0.5, 0.52, 0.55, 0.6, 0.65, 0.7)
CHART_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

_CERTAIN = 0.01


def regime_chart(
    p0: Sequence[float] = CHART_P0,
    step_sqrt_votes: Sequence[float] = CHART_STEPS,
    n_votes: int = 64,
    n_samples: int = 32,
    *,
    delta: float = 0.01,
    window: int = 5,
) -> pd.DataFrame:
    """One row per cell, from the exact chain.

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
    for place, p in enumerate(p0):
        lost, first = float(lost_E[place]), float(first_E[place])
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
                "single_flip_share": float(single_E[place]),
            }
        )
    return rows
