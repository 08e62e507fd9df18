"""The simulator's engine, two answers and independent problems, against the exact chain."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from sim import SimConfig, simulate
from sim.theory import Process, flip_rate_by_visit, lock_in, wrong_by_visit

REPLICATES, PROBLEMS = 20, 1000
N_RUNS = REPLICATES * PROBLEMS
CELLS = [
    # V, K, step, p0, visits after which the end is certain to a tenth of a standard error
    (64, 64, 0.1, 0.52, 40),
    (64, 64, 0.1, 0.55, 40),
    (64, 64, 0.3, 0.55, 15),
    (64, 64, 1.0, 0.55, 8),
    (64, 32, 0.1, 0.48, 40),
    (64, 32, 0.3, 0.53, 15),
    (64, 8, 0.3, 0.55, 20),
    (65, 33, 0.2, 0.5, 20),
    (32, 16, 0.15, 0.45, 40),
    (16, 5, 0.5, 0.55, 40),
    (16, 16, 0.5, 0.55, 40),
    (9, 4, 1.0, 0.4, 40),
    (8, 8, 0.3, 0.6, 60),
    (8, 8, 1.0, 0.6, 40),
]


@cache
def _wrong_and_flips(
    n_votes: int, n_samples: int, step: float, p0: float, visits: int
) -> pd.DataFrame:
    """Share of wrong labels and of changed labels by visit; visit 0 is before training."""
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
    by_visit = table.groupby("visit")[["label_correct", "flipped"]].mean()
    return pd.DataFrame({"wrong": 1 - by_visit["label_correct"], "flipped": by_visit["flipped"]})


def _error(share: float) -> float:
    return math.sqrt(max(share * (1 - share), 10 / N_RUNS) / N_RUNS)


@pytest.mark.parametrize("cell", CELLS)
def test_problems_end_wrong_as_often_as_the_chain_says(
    cell: tuple[int, int, float, float, int],
) -> None:
    n_votes, n_samples, step, p0, visits = cell
    exact = lock_in(p0, step, n_votes, n_samples)
    at_last = float(wrong_by_visit(p0, Process(step, n_votes, n_samples), visits)[-1])
    assert abs(at_last - exact) < 0.1 * _error(exact)
    assert abs(_wrong_and_flips(*cell)["wrong"].iloc[-1] - exact) < 3 * _error(exact)


@pytest.mark.parametrize("cell", CELLS)
def test_labels_and_flips_follow_the_chain_visit_by_visit(
    cell: tuple[int, int, float, float, int],
) -> None:
    n_votes, n_samples, step, p0, _ = cell
    process, drawn = Process(step, n_votes, n_samples), _wrong_and_flips(*cell)
    wrong_T, rate_T = wrong_by_visit(p0, process, 8), flip_rate_by_visit(p0, process, 8)
    assert abs(drawn["wrong"].loc[0] - wrong_T[0]) < 4 * _error(wrong_T[0])
    # 4 standard errors, since the cells make more than a hundred comparisons.
    for visit in (1, 2, 4, 8):
        for column, exact in (("wrong", wrong_T[visit - 1]), ("flipped", rate_T[visit - 1])):
            assert abs(drawn[column].loc[visit] - exact) < 4 * _error(float(exact))


def test_a_flip_is_the_most_that_majority_accuracy_can_change_by() -> None:
    drawn = _wrong_and_flips(*CELLS[0])
    change = np.abs(np.diff(drawn["wrong"]))
    assert np.all(change <= drawn["flipped"].to_numpy()[1:] + 1e-12)
