"""The two-answer chain against enumeration, its limits and its own grid, and the closed forms."""

import itertools
import math

import numpy as np
import pytest

from lab.base.errors import UserError
from sim.theory import (
    Process,
    detection,
    flip_law,
    flip_rate_by_visit,
    lock_in,
    windows,
    wrong_by_visit,
)
from sim.theory import chain as forms
from sim.theory.chain import lock_in_chain
from sim.theory.flow import plurality
from sim.theory.tables import draw


def _grpo_move(votes: tuple[int, ...], label: int, n_samples: int, step: float, p: float) -> float:
    """Change of z_correct - z_wrong by the policy gradient, from the responses one by one."""
    sampled = np.array(votes[:n_samples])
    reward = (sampled == label).astype(float)
    if reward.std() == 0:
        return 0.0
    advantage = (reward - reward.mean()) / reward.std(ddof=1)
    chances = np.array([1.0 - p, p])
    gradient = np.mean(advantage[:, None] * (np.eye(2)[sampled] - chances), axis=0)
    return step * float(gradient[1] - gradient[0])


def _enumerated(p: float, step: float, n_votes: int, n_samples: int) -> dict[float, float]:
    """Law of the move, by listing all sequences of votes (1 is correct)."""
    law: dict[float, float] = {}
    for votes in itertools.product((0, 1), repeat=n_votes):
        chance = p ** sum(votes) * (1 - p) ** (n_votes - sum(votes))
        lead = 2 * sum(votes) - n_votes
        for label in [1] if lead > 0 else [0] if lead < 0 else [0, 1]:
            move = round(_grpo_move(votes, label, n_samples, step, p), 9)
            law[move] = law.get(move, 0.0) + chance * (0.5 if lead == 0 else 1.0)
    return law


@pytest.mark.parametrize(("n_votes", "n_samples"), [(3, 3), (5, 3), (6, 2), (6, 6), (7, 4), (8, 5)])
def test_the_law_of_a_visit_is_that_of_all_vote_sequences(n_votes: int, n_samples: int):
    p, step = 0.62, 0.37
    law = Process(step, n_votes, n_samples).law([math.log(p / (1 - p))])
    found: dict[float, float] = {}
    for sign, table_M in ((1.0, law.up_NM[0]), (-1.0, law.down_NM[0])):
        for size, chance in zip(law.sizes_M, table_M, strict=True):
            move = round(sign * float(size), 9)
            found[move] = found.get(move, 0.0) + float(chance)
    expected = _enumerated(p, step, n_votes, n_samples)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert {move for move, chance in found.items() if chance > 1e-12} == set(expected)
    for move, chance in expected.items():
        assert found[move] == pytest.approx(chance, abs=1e-8)


@pytest.mark.parametrize(
    ("n_votes", "n_samples", "step"),
    [(64, 64, 0.01), (64, 32, 0.1), (64, 16, 1.0), (8, 8, 0.3), (3, 2, 0.2), (9, 4, 5.0)],
)
def test_halving_the_grid_changes_less_than_1e_4(n_votes: int, n_samples: int, step: float):
    process = Process(step, n_votes, n_samples)
    p0 = np.linspace(0.3, 0.7, 41)
    once, twice = (lock_in_chain(process, refine).at(p0) for refine in (1, 2))
    assert np.abs(once - twice).max() < 1e-6


@pytest.mark.parametrize(("n_votes", "n_samples"), [(64, 64), (64, 32), (8, 8), (5, 3), (3, 2)])
def test_a_huge_step_makes_the_first_move_final(n_votes: int, n_samples: int):
    process = Process(1e4, n_votes, n_samples)
    for p0 in (0.4, 0.55, 0.7):
        x0 = math.log(p0 / (1 - p0))
        first_move = float(process.wrong_first_move(x0)[0])
        assert float(lock_in_chain(process).at(p0)) == pytest.approx(first_move, abs=1e-6)
        if n_votes == 64:  # Sampled groups in full agreement are as good as impossible.
            assert first_move == pytest.approx(float(process.wrong_vote(x0)[0]), abs=1e-4)


def test_beyond_the_barrier_nothing_is_left_to_happen():
    process = Process(0.1, 64, 32)
    assert lock_in(0.999, 0.1, 64, 32) == 0.0
    assert lock_in(0.001, 0.1, 64, 32) == 1.0
    assert wrong_by_visit(0.001, process, 3).tolist() == [1.0, 1.0, 1.0]
    right, wrong = windows(process).at(0.9), windows(process).at(0.1)
    assert (right.visits, right.lost, math.isnan(right.visits_lost)) == (0.0, 0.0, True)
    assert tuple(wrong) == (0.0, 0.0, 1.0)


GOOD = {"p0": 0.55, "step": 0.1, "n_votes": 64, "n_samples": 32}
P = Process(0.1, 8, 8)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        *((lambda p0=p0: lock_in(**GOOD | {"p0": p0}), "p0 = ") for p0 in (0.0, 1.0, math.nan)),
        *((lambda step=step: Process(step, 8, 8), "step = ") for step in (0.0, math.inf, 1e-9)),
        (lambda: Process(0.1, 2, 2), "n_votes = 2"),
        (lambda: Process(0.1, 8.5, 8), "n_votes = 8.5"),
        (lambda: Process(0.1, 64, 1), "n_samples = 1"),
        (lambda: Process(0.1, 64, 65), "n_samples = 65"),
        (lambda: lock_in(**GOOD, method="guess"), "method = "),
        (lambda: lock_in(**GOOD | {"p0": math.nan}, method="diffusion"), "p0 = "),
        (lambda: windows(P, 0.5), "delta = 0.5"),
        (lambda: windows(P, math.nan), "delta = nan"),
        (lambda: detection(0.5, P, 0), "n_visits = 0"),
        (lambda: detection(0.5, P, 10, window=0), "window = 0"),
        (lambda: detection(0.5, P, 10, tau=1.0), "tau = 1.0"),
        (lambda: plurality([0.5, 0.6], 8), "p must be probabilities"),
        (lambda: plurality([1.2, -0.2], 8), "p must be probabilities"),
        (lambda: flip_law(0.5, P, max_flips=True), "max_flips = True"),
        (lambda: flip_rate_by_visit(0.5, P, 2.5), "n_visits = 2.5"),
        (lambda: draw(0.5, P, n_runs=0), "n_runs = 0"),
        (lambda: draw(0.5, P, max_visits=-1), "max_visits = -1"),
    ],
)
def test_bad_input_is_named(ask, named):
    with pytest.raises(UserError, match=f"theory: {named}"):
        ask()


def test_the_notes_constants():
    assert forms.escape_rate(0.1, 64) == pytest.approx(0.399 * 0.1 * 8, rel=1e-3)
    assert forms.separatrix_width(0.1, 64) == pytest.approx(math.sqrt(0.1 / (0.798 * 8)), rel=1e-3)
    assert lock_in(0.5, 0.1, 64, 32, method="diffusion") == 0.5
    x0 = math.log(0.52 / 0.48)
    z = x0 / math.sqrt(0.1 / (0.798 * 8))
    expected = 0.5 * math.erfc(z / math.sqrt(2))
    assert lock_in(0.52, 0.1, 64, 32, method="diffusion") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("scaled", "tolerance"), [(0.0625, 0.002), (0.25, 0.004), (1.0, 0.013), (2.5, 0.031)]
)
def test_lock_in_for_small_steps(scaled: float, tolerance: float):
    p0 = np.linspace(0.4, 0.6, 41)
    exact = lock_in_chain(Process(scaled / 8, 64, 64)).at(p0)
    closed = [forms.lock_in_diffusion(float(p), scaled / 8, 64) for p in p0]
    assert np.abs(exact - closed).max() < tolerance


def test_the_window_is_a_scale_that_the_exact_mean_exceeds():
    x_d = 2 * 2.3263479 / 8
    x0 = math.log(0.55 / 0.45)
    expected = math.log(x_d / x0) / (0.398942 * 0.1 * 8)
    assert forms.window_closed_form(0.55, 0.1, 64) == pytest.approx(expected, rel=1e-5)
    assert forms.window_closed_form(0.45, 0.1, 64) == pytest.approx(expected, rel=1e-5)
    assert forms.window_closed_form(0.9, 0.1, 64) == 0.0
    for step in (0.01, 0.03, 0.1):
        ratio = windows(Process(step, 64, 64)).at(0.5).visits / forms.window_closed_form(
            0.5, step, 64
        )
        assert 1.2 < ratio < 2.0
