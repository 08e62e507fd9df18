"""The tables of `guard-sim theory`: the regime chart, and the chain compared with the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest

from guard_core import GuardConfig
from guard_core.rules.rule import at_label
from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, arm
from lab.base.columns import Bools, Ints
from lab.base.errors import UserError
from lab.base.stats import estimate
from sim.engine.run import Simulation
from sim.settings.config import SimConfig
from sim.theory import chain
from sim.theory.process import Floats, Process, check_count, logit

CHART_P0 = (0.35, 0.4, 0.45, 0.48, 0.5, 0.52, 0.55, 0.6, 0.65, 0.7)
CHART_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

HEADING = "Two answers, V = {}, K = {}, {} problems a cell"
MEMORY_WINS = "One problem, two answers: memory wins above about 1.1 (docs/method.md, section 17)."
COLUMNS = ("p0", "step", "quantity", "exact", "drawn", "low", "high", "closed_form", "inside")

_CERTAIN = 0.01
_RATE_VISITS = 5
_WINDOW, _TAU = 5, 0.3
_EVEN = 0.1
"""Least probability of the label, and of all else, from which a step is read."""


def regime_chart(
    p0: Sequence[float] = CHART_P0,
    step_sqrt_votes: Sequence[float] = CHART_STEPS,
    n_votes: int = 64,
    n_samples: int = 32,
) -> pd.DataFrame:
    """Return the regimes over p0 and step * sqrt(V), one row per cell, from the exact chain.

    Args:
        step_sqrt_votes: values of step * sqrt(V), which with V fixed stand for the step size.

    Returns:
        `p0`, `step_sqrt_votes`, `step`, `n_votes`, `n_samples`; `lost` (probability to end on the
        wrong answer); `lost_diffusion` and `lost_first_move`, the two limits of it; `form`, the
        limit that is closer; `visits` and `visits_lost` (means, see `Window`);
        `single_flip_share`; and `regime`: `kept` or `lost` where the end is 99 % certain, else
        `slow` where the extinction takes at least five visits on average, else `sudden`.
    """
    x0_E, parts = [logit(p) for p in p0], []
    for scaled in step_sqrt_votes:
        process = Process(scaled / math.sqrt(n_votes), n_votes, n_samples)
        lost_E = chain.solve_lock_in(chain.smooth_moves(process)).at(p0)
        diffusion_E = np.array([chain.lock_in_diffusion(p, process.step, n_votes) for p in p0])
        first_E, solved = process.wrong_first_move(x0_E), chain.windows(process)
        nearer_E = np.abs(diffusion_E - lost_E) <= np.abs(first_E - lost_E)
        columns: dict[str, Any] = {"p0": p0, "step_sqrt_votes": process.step * math.sqrt(n_votes)}
        columns |= {"step": process.step, "n_votes": n_votes, "n_samples": n_samples}
        columns |= {"lost": lost_E, "lost_diffusion": diffusion_E, "lost_first_move": first_E}
        columns |= {"form": np.where(nearer_E, "diffusion", "first move")}
        visits = np.array([solved.at(p)[:2] for p in p0])
        columns |= {"visits": visits[:, 0], "visits_lost": visits[:, 1]}
        columns |= {"single_flip_share": chain.single_flip_share(p0, process)}
        parts.append(pd.DataFrame(columns))
    chart = pd.concat(parts, ignore_index=True)
    chart["regime"] = np.select(
        [chart["lost"] < _CERTAIN, chart["lost"] > 1 - _CERTAIN, chart["visits"] >= _WINDOW],
        ["kept", "lost", "slow"],
        "sudden",
    )
    return chart


class Runs(NamedTuple):
    """The outcome of R independent problems that started alike."""

    lost_R: Bools
    """The last label is wrong."""
    degraded_R: Bools
    """The first label is correct, the last one wrong."""
    flips_R: Ints
    """Label changes since visit 0."""
    detected_R: Bools
    """The flip rate over `_WINDOW` visits once exceeded `_TAU`."""
    extinct_at_R: Ints
    """Visits until either answer was extinct, -1 where neither was."""
    extinct_wrong_R: Bools
    """The correct answer was the first to become extinct."""
    flip_rate_T: Floats
    """(T,) share of the problems whose label changed at visit 1, 2, .. T."""


def draw(
    p0: float, process: Process, n_runs: int = 20_000, *, seed: int = 0, max_visits: int = 2000
) -> Runs:
    """Simulate problems until all are locked in or the visits are used up.

    The simulator with two answers and the policy `independent` is the process itself. A problem is
    locked in where fewer than 1e-7 of its moves go back.
    """
    logit(p0)  # refuses chances of 0 and 1
    check_count("n_runs", n_runs, 1)
    check_count("max_visits", max_visits, _RATE_VISITS)
    check_count("seed", seed, 0)
    barrier, extinct = process.barrier(1e-7), process.extinction()
    flat = SimConfig(policy="independent", population="point", ability_mean=p0, ability_floor=0.0)
    size = replace(flat, n_answers=2, n_problems=n_runs, batch_size=n_runs, epochs=max_visits)
    votes = replace(size, n_votes=process.n_votes, n_samples=process.n_samples, vote_replicates=0)
    plain = replace(votes, step=process.step, schedule="constant", guard=GuardConfig.off())
    simulation = Simulation(replace(plain, seed=seed))
    flips_R, extinct_at_R = np.zeros(n_runs, np.int64), np.full(n_runs, -1)
    detected_R, wrong_R = np.zeros(n_runs, bool), np.zeros(n_runs, bool)
    flip_rate_T, first_R, right_R = np.zeros(max_visits), wrong_R, wrong_R
    for visit, part in enumerate(simulation.run()):
        order_R = np.argsort(part.visits["problem"])
        right_R = np.asarray(part.visits["label_correct"], bool)[order_R]
        if visit == 0:
            first_R = right_R
        else:
            flipped_R = np.asarray(part.visits["flipped"], bool)[order_R]
            flips_R += flipped_R
            flip_rate_T[visit - 1] = flipped_R.mean()
            detected_R |= np.asarray(part.visits["flip_rate"], float)[order_R] > _TAU
        p_1NA, truth_1N = simulation.probabilities(), simulation.population.truth_RN
        right_N, wrong_N = (at_label(p_1NA, ids_1N)[0] for ids_1N in (truth_1N, 1 - truth_1N))
        with np.errstate(divide="ignore"):
            x_R = np.log(right_N / wrong_N)
        now_R = (extinct_at_R < 0) & (np.abs(x_R) >= extinct)
        extinct_at_R[now_R], wrong_R[now_R] = visit, x_R[now_R] < 0
        if np.all(np.abs(x_R) >= barrier):
            break
    degraded_R = first_R & ~right_R
    return Runs(~right_R, degraded_R, flips_R, detected_R, extinct_at_R, wrong_R, flip_rate_T)


def own_steps(config: SimConfig) -> Floats:
    """(R, N) step, as of `Process.step`, that each problem takes at its first visit.

    It is the change of the label's log odds by TTRL's update on the problem alone, divided by the 2
    sqrt(p (1 - p)) of two answers and many samples, p the label's probability. With the policy
    `measured` this reads the step of a real model at a learning rate, without warm-up and rounding
    of weights, so that it can be found in charts of the theory. NaN where p is below .1 or above
    .9. In other coupled policies the first epoch's updates on other problems are part of it.
    """
    measured = {"parts_off": ("others",), "mini_batch": 1, "ema_decay": 0.0, "dtype": "float32"}
    alone: dict[str, Any] = measured if config.policy == "measured" else {}
    alone |= {"epochs": 1, "schedule": "constant"}
    simulation = Simulation(replace(with_arm(config, arm(BASELINE, config.step_factor)), **alone))
    simulation.before()
    before_RNA = simulation.probabilities()
    visits = simulation.epoch(1).visits
    shape_RN = before_RNA.shape[:2]
    label_RN = np.empty(shape_RN, np.int64)
    problem_RN = np.asarray(visits["problem"], np.int64).reshape(shape_RN)
    np.put_along_axis(label_RN, problem_RN, np.asarray(visits["label"]).reshape(shape_RN), axis=1)
    after_RNA = simulation.probabilities()
    p_RN, after_RN = (at_label(p_RNA, label_RN) for p_RNA in (before_RNA, after_RNA))
    read_RN = (p_RN >= _EVEN) & (p_RN <= 1 - _EVEN)  # without a label p is 0
    with np.errstate(divide="ignore", invalid="ignore"):
        moved_RN = np.log(after_RN / (1 - after_RN)) - np.log(p_RN / (1 - p_RN))
        return np.where(read_RN, moved_RN / (2 * np.sqrt(p_RN * (1 - p_RN))), np.nan)


class Drawn(NamedTuple):
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float


def proportion(hits: Bools) -> Drawn:
    """Share of true entries with Wilson's interval; NaN for no entries."""
    if hits.size == 0:
        return Drawn(math.nan, math.nan, math.nan)
    test = binomtest(int(hits.sum()), hits.size)
    return Drawn(float(test.statistic), *test.proportion_ci(method="wilson"))


def average(values: NDArray[np.number]) -> Drawn:
    """Mean with its t-interval; NaN for no entries."""
    mean = estimate(np.asarray(values, np.float64))
    return Drawn(mean.mean, mean.low, mean.high)


def drawn_table(
    p0: Sequence[float],
    step: Sequence[float],
    n_votes: int,
    n_samples: int,
    *,
    n_runs: int = 20_000,
    seed: int = 0,
    max_visits: int = 2000,
) -> pd.DataFrame:
    """Compare the chain with the simulator; one row per cell of p0 x step and quantity.

    Of `COLUMNS`, `exact` is from the chain, `low` to `high` the 95 % interval of `drawn`,
    `closed_form` NaN where there is none, and `inside` true where the interval holds `exact`.
    """
    if len(p0) == 0 or len(step) == 0:
        raise UserError("theory: p0 and step need at least one value each")
    rows = []
    for row, eta in enumerate(step):
        process = Process(eta, n_votes, n_samples)
        for column, p in enumerate(p0):
            runs = draw(p, process, n_runs, seed=seed + 1000 * row + column, max_visits=max_visits)
            for quantity, exact, drawn, closed in _quantities(p, process, runs):
                inside = drawn.low <= exact <= drawn.high
                rows.append((p, eta, quantity, exact, *drawn, closed, inside))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def step_text(config: SimConfig) -> str:
    """A line about the step of a measured model at the learning rate of the settings."""
    low, step, high = np.nanquantile(own_steps(config), [0.25, 0.5, 0.75])
    return (
        f"lr {config.lr:g}: step {step:.3g} (middle half {low:.3g} to {high:.3g}), "
        f"step * sqrt(V) = {step * config.n_votes**0.5:.2f} with V = {config.n_votes}"
    )


def chart_text(n_votes: int, n_samples: int) -> str:
    """The regime chart for printing."""
    chart = regime_chart(CHART_P0, CHART_STEPS, n_votes, n_samples)
    columns = ["p0", "step_sqrt_votes", "lost", "visits", "single_flip_share", "regime"]
    return chart[columns].round(4).to_string(index=False)


def as_text(table: pd.DataFrame) -> str:
    """The table of `drawn_table` as plain text, with a count of agreements below it."""
    known = table["low"].notna()
    numbers = table.round(4).astype({"inside": object})
    numbers.loc[~known, "inside"] = "-"
    count = f"{sum(table['inside'][known])} of {sum(known)} rows; about 1 in 20 misses it"
    lines = numbers.to_string(index=False, na_rep="-")
    return f"{lines}\nThe 95 % interval, low to high, holds the exact value in {count}."


def _quantities(
    p0: float, process: Process, runs: Runs
) -> Iterator[tuple[str, float, Drawn, float]]:
    lost = chain.lock_in(p0, process.step, process.n_votes, process.n_samples)
    near = chain.windows(process).at(p0)
    diffusion = chain.lock_in_diffusion(p0, process.step, process.n_votes)
    yield "P(ends wrong)", lost, proportion(runs.lost_R), diffusion
    closed = chain.window_closed_form(p0, process.step, process.n_votes)
    done_R = runs.extinct_at_R >= 0
    yield "visits to lock-in", near.visits, average(runs.extinct_at_R[done_R]), closed
    lost_R = done_R & runs.extinct_wrong_R
    yield "visits to lock-in if lost", near.visits_lost, average(runs.extinct_at_R[lost_R]), closed
    rate = float(chain.flip_rate_by_visit(p0, process, _RATE_VISITS)[-1])
    n_flipped = round(runs.flip_rate_T[_RATE_VISITS - 1] * runs.lost_R.size)
    flipped_R = np.arange(runs.lost_R.size) < n_flipped
    yield f"flip rate at visit {_RATE_VISITS}", rate, proportion(flipped_R), math.nan
    single = float(chain.single_flip_share(p0, process))
    once_R = runs.flips_R[runs.degraded_R] == 1
    yield "one flip only, if degraded", single, proportion(once_R), math.nan
    seen = (f"FR over {_WINDOW}", _WINDOW, runs.detected_R), ("one-step FR", 1, runs.flips_R > 0)
    for name, window, seen_R in seen:
        exact = chain.detection(p0, process, runs.flip_rate_T.size, window=window, tau=_TAU).of_lost
        yield f"{name} > .3, if lost", exact, proportion(seen_R[runs.lost_R]), math.nan
