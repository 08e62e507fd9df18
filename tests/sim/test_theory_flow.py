"""The mean flow of coupled problems and of many answers, against brute force and the engine."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from sim import SimConfig, simulate
from sim.theory import Process, lock_in
from sim.theory.flow import Coupling, collapse, critical_coupling, mean_field, plurality, replicator


def _wrong_RT(coupling: Coupling, **settings: object) -> np.ndarray:
    """(R, T + 1) share of wrong labels of each replicate by visit, from the engine."""
    config = SimConfig(
        **{
            "policy": "attractor",
            "population": "point",
            "guard": GuardConfig.off(),
            "n_answers": 2,
            "schedule": "constant",
            "load_sd": 0.0,
            "seed": 11,
            **coupling._asdict(),
            **settings,
        }  # pyright: ignore[reportArgumentType]
    )
    table = simulate(config).visits
    right = table.groupby(["replicate", "visit"])["label_correct"].mean().unstack()
    return 1.0 - right.to_numpy()


@pytest.mark.parametrize(
    ("p", "n_votes"), [([0.5, 0.3, 0.2], 7), ([0.6, 0.4], 8), ([0.25] * 4, 5), ([0.9, 0.1, 0.0], 3)]
)
def test_plurality_equals_the_sum_over_all_votes(p: list[float], n_votes: int) -> None:
    wins_A = np.zeros(len(p))
    for votes in itertools.product(range(len(p)), repeat=n_votes):
        count_A = np.bincount(votes, minlength=len(p))
        tied_A = count_A == count_A.max()
        wins_A += math.prod(p[a] for a in votes) * tied_A / tied_A.sum()
    assert plurality(p, n_votes) == pytest.approx(wins_A, abs=1e-12)


def test_plurality_of_two_answers_is_the_label_of_the_chain() -> None:
    wrong = float(Process(0.1, 64, 32).wrong_vote(math.log(0.55 / 0.45))[0])
    assert plurality([0.55, 0.45], 64)[1] == pytest.approx(wrong, abs=1e-12)


def test_the_replicator_is_the_engines_mean_update() -> None:
    # The engine's update has (K - 1) / K in the standard deviation, the flow an infinite group.
    p0, step = 0.53, 0.2
    flow_TA = replicator([p0, 1 - p0], 9, step * math.sqrt(8 / 9), 1)
    config = SimConfig(
        policy="independent",
        population="point",
        ability_mean=p0,
        guard=GuardConfig.off(),
        n_problems=2000,
        batch_size=2000,
        epochs=2,
        n_votes=9,
        n_samples=9,
        n_answers=2,
        step=step,
        schedule="constant",
        update="expected",
        replicates=5,
        seed=3,
    )
    visits = simulate(config).visits
    second = visits[visits["visit"] == 2]["label_accuracy"]
    error = float(second.std()) / math.sqrt(len(second))
    assert abs(float(second.mean()) - flow_TA[1, 0]) < 4 * error
    assert flow_TA[1, 0] - flow_TA[0, 0] > 4 * error


def test_the_replicator_keeps_a_tie_and_lets_the_majority_of_three_win() -> None:
    assert replicator([0.25] * 4, 16, 0.3, 5)[-1] == pytest.approx([0.25] * 4)
    path_TA = replicator([0.4, 0.35, 0.25], 16, 0.5, 60)
    assert path_TA.sum(1) == pytest.approx(np.ones(61))
    assert path_TA[-1, 0] > 0.95


@pytest.mark.parametrize("kappa", [0.1, 0.2])
def test_the_mean_field_is_the_engine_with_small_steps(kappa: float) -> None:
    coupling, visits = Coupling(kappa, 0.0, 0.3), 24
    flow = mean_field(np.full(100, 0.55), Process(0.005, 16, 16), visits, coupling)
    settings = {"ability_mean": 0.55, "n_problems": 100, "epochs": visits, "step": 0.005}
    drawn_RT = _wrong_RT(coupling, n_votes=16, n_samples=16, replicates=40, **settings)
    error_T = drawn_RT.std(0, ddof=1) / math.sqrt(40)
    # The first visits; later the noise of the shared direction decides, see `collapse`.
    near = slice(0, 9)
    assert np.all(np.abs(drawn_RT.mean(0) - flow.wrong_TN.mean(1))[near] < 4 * error_T[near])


def test_below_the_critical_coupling_problems_rise_and_above_it_they_fall() -> None:
    process, p0_N = Process(0.01, 64, 32), np.array([0.52, 0.53, 0.54, 0.56])
    critical_N = critical_coupling(p0_N, process, 0.0)
    assert np.all(np.diff(critical_N) > 0)
    for problem, critical in enumerate(critical_N):
        for factor, sign in ((0.9, 1), (1.1, -1)):
            flow = mean_field(p0_N, process, 1, Coupling(factor * critical, 0.0, 0.3))
            assert np.sign(np.diff(flow.x_TN[:, problem])[0]) == sign
    assert np.all(np.isinf(critical_coupling([0.7, 0.8], process)))
    assert critical_coupling([0.4], process, 0.0)[0] == 0.0


def test_without_coupling_one_problem_collapses_as_the_chain_locks_in() -> None:
    alone = Coupling(0.0, 0.0, 0.3)
    for p0, step in ((0.52, 0.01), (0.51, 0.03)):
        exact = lock_in(p0, step, 64, 32)
        assert collapse(p0, 1, Process(step, 64, 32), alone) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(
    ("factor", "n_votes", "p0"), [(0.9, 64, 0.54), (1.1, 64, 0.53), (1.0, 16, 0.59)]
)
def test_a_coupled_population_collapses_as_often_as_in_the_engine(
    factor: float, n_votes: int, p0: float
) -> None:
    process = Process(0.005, n_votes, min(n_votes, 32))
    critical = float(critical_coupling(np.full(100, p0), process, 0.0)[0])
    coupling = Coupling(factor * critical, 0.0, 0.3)
    chance = collapse(p0, 100, process, coupling)
    drawn_RT = _wrong_RT(
        coupling,
        ability_mean=p0,
        n_problems=100,
        epochs=80,
        n_votes=n_votes,
        n_samples=process.n_samples,
        step=process.step,
        replicates=100,
    )
    collapsed = float((drawn_RT[:, -1] > 0.5).mean())
    assert abs(collapsed - chance) < 3 * math.sqrt(0.25 / 100)
    assert 0.02 < chance < 0.98


@pytest.mark.parametrize("p", [[0.5, 0.6], [1.2, -0.2]])
def test_what_is_no_distribution_is_refused(p: list[float]) -> None:
    with pytest.raises(UserError, match="theory: p must be probabilities"):
        plurality(p, 8)
