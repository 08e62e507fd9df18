"""The simulator's engine, two answers and independent problems, against the exact chain."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.errors import UserError
from sim import SimConfig, simulate
from sim.theory import Process, detection
from sim.theory.flow import memory_wrong

Cell = tuple[int, int, float, float, int]

REPLICATES, PROBLEMS = 20, 1000
N_RUNS = REPLICATES * PROBLEMS


@cache
def _visits(n_votes: int, n_samples: int, step: float, p0: float, visits: int) -> pd.DataFrame:
    """All visits of a cell; visit 0 is before training."""
    config = SimConfig(
        policy="independent",
        population="point",
        ability_mean=p0,
        guard=GuardConfig.off(),
        n_problems=PROBLEMS,
        epochs=visits,
        batch_size=PROBLEMS,
        n_votes=n_votes,
        n_samples=n_samples,
        n_answers=2,
        step=step,
        schedule="constant",
        replicates=REPLICATES,
        seed=7,
    )
    table = simulate(config).visits
    assert (table.groupby("visit").size() == N_RUNS).all()
    return table[["replicate", "problem", "visit", "label_correct", "flipped", "flip_rate"]]


def _wide(cell: Cell, column: str) -> np.ndarray:
    """(R * N, T + 1) a column of the visits, one row per problem."""
    table = _visits(*cell)
    return table.pivot(index=["replicate", "problem"], columns="visit", values=column).to_numpy()


def _error(share: float) -> float:
    return math.sqrt(max(share * (1 - share), 10 / N_RUNS) / N_RUNS)


def _drawn_cells(n_cells: int) -> list[Cell]:
    """Cells that nobody chose, in the form of `CELLS`."""
    rng = np.random.default_rng(2026)
    cells = []
    for _ in range(n_cells):
        n_votes = int(rng.integers(8, 65))
        step = round(float(np.exp(rng.uniform(np.log(0.05), np.log(1.0)))), 3)
        p0 = round(float(rng.uniform(0.42, 0.56)), 3)
        cells.append((n_votes, int(rng.integers(4, n_votes + 1)), step, p0, 30))
    return cells


@pytest.mark.parametrize("cell", _drawn_cells(3))
def test_lost_problems_are_detected_as_often_as_the_chain_says(cell: Cell) -> None:
    n_votes, n_samples, step, p0, visits = cell
    process = Process(step, n_votes, n_samples)
    right_NT = _wide(cell, "label_correct").astype(bool)
    ends = {"of_lost": ~right_NT[:, -1], "of_kept": right_NT[:, -1]}
    # The engine's own flip rate is over five visits; one step is a flip at any visit.
    for window, rate in ((5, "flip_rate"), (1, "flipped")):
        seen_N = (_wide(cell, rate)[:, 1:].astype(float) > 0.3).any(1)
        exact = detection(p0, process, visits, window=window, tau=0.3)
        for name, end_N in ends.items():
            share = float(seen_N[end_N].mean())
            error = math.sqrt(max(share * (1 - share), 1e-3) / end_N.sum())
            assert abs(share - getattr(exact, name)) < 4 * error


@pytest.mark.parametrize(("name", "value"), [("n_visits", 0), ("window", 0), ("tau", 1.0)])
def test_bad_settings_of_the_detection_are_named(name: str, value: float) -> None:
    settings: dict[str, Any] = {"n_visits": 10, name: value}
    with pytest.raises(UserError, match=f"theory: {name} = "):
        detection(0.5, Process(0.1, 8, 8), **settings)


def test_remembered_majorities_are_wrong_as_often_as_the_urn_says() -> None:
    p0, step, n_votes, visits = 0.46, 0.4, 9, 20
    config = SimConfig(
        policy="independent",
        population="point",
        ability_mean=p0,
        guard=arm("memory").guard,
        n_problems=PROBLEMS,
        batch_size=PROBLEMS,
        epochs=visits,
        n_votes=n_votes,
        n_samples=6,
        n_answers=2,
        step=step,
        schedule="constant",
        replicates=REPLICATES,
        seed=5,
    )
    drawn_T = 1 - simulate(config).visits.groupby("visit")["label_correct"].mean()
    exact_T = memory_wrong(p0, Process(step, n_votes, 6), visits)
    for visit in (0, 1, 3, 8, 20):
        assert abs(drawn_T.loc[visit] - exact_T[visit]) < 4 * _error(float(exact_T[visit]))


def test_without_training_the_memory_finds_the_majority_of_the_policy() -> None:
    wrong_T = memory_wrong(0.55, Process(1e-3, 9, 9), 3)
    alone_T = [float(binom.cdf(9 * (t + 1) // 2, 9 * (t + 1), 0.55)) for t in (0, 2)]
    assert wrong_T[[0, 2]] == pytest.approx(alone_T, abs=2e-3)
