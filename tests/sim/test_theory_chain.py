import itertools
import math

import numpy as np
import pytest

from lab.base.errors import UserError
from lab.cli import run_cli
from sim.commands import Theory
from sim.theory import (
    Process,
    detection,
    flip_law,
    flip_rate_by_visit,
    lock_in,
    regime_chart,
    windows,
    wrong_by_visit,
)
from sim.theory import chain as forms
from sim.theory.chain import single_flip_share, smooth_moves, solve_lock_in
from sim.theory.flow import plurality
from sim.theory.tables import COLUMNS, as_text, average, draw, drawn_table, proportion


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
def test_halving_the_grid_changes_less_than_1e_6(n_votes: int, n_samples: int, step: float):
    process = Process(step, n_votes, n_samples)
    p0 = np.linspace(0.3, 0.7, 41)
    once, twice = (solve_lock_in(smooth_moves(process, refine)).at(p0) for refine in (1, 2))
    assert np.abs(once - twice).max() < 1e-6


@pytest.mark.parametrize(("n_votes", "n_samples"), [(64, 64), (64, 32), (8, 8), (5, 3), (3, 2)])
def test_a_huge_step_makes_the_first_move_final(n_votes: int, n_samples: int):
    process = Process(1e4, n_votes, n_samples)
    for p0 in (0.4, 0.55, 0.7):
        x0 = math.log(p0 / (1 - p0))
        first_move = float(process.wrong_first_move(x0)[0])
        lost = float(solve_lock_in(smooth_moves(process)).at(p0))
        assert lost == pytest.approx(first_move, abs=1e-6)
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
    runs = draw(1e-6, process, 50)
    assert np.all(runs.lost_R & runs.extinct_wrong_R & (runs.extinct_at_R == 0))


GOOD = {"p0": 0.55, "step": 0.1, "n_votes": 64, "n_samples": 32}
P = Process(0.1, 8, 8)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        *((lambda p0=p0: lock_in(**GOOD | {"p0": p0}), "p0 = ") for p0 in (0.0, 1.0, math.nan)),
        *((lambda x=x: lock_in(**GOOD | {"step": x}), "step = ") for x in (0.0, math.inf, 1e-9)),
        (lambda: Process(0.1, 2, 2), "n_votes = 2"),
        (lambda: Process(0.1, 64, 65), "n_samples = 65"),
        (lambda: lock_in(**GOOD, method="guess"), "method = "),
        (lambda: lock_in(**GOOD | {"p0": math.nan}, method="diffusion"), "p0 = "),
        (lambda: windows(P, 0.5), "delta = 0.5"),
        (lambda: detection(0.5, P, 0), "n_visits = 0"),
        (lambda: detection(0.5, P, 10, window=0), "window = 0"),
        (lambda: detection(0.5, P, 10, tau=1.0), "tau = 1.0"),
        (lambda: plurality([0.5, 0.6], 8), "p must be probabilities"),
        (lambda: flip_law(0.5, P, max_flips=True), "max_flips = True"),
        (lambda: flip_rate_by_visit(0.5, P, 2.5), "n_visits = 2.5"),
        (lambda: draw(0.5, P, n_runs=0), "n_runs = 0"),
        (lambda: draw(0.5, P, max_visits=-1), "max_visits = -1"),
        (lambda: draw(0.5, P, seed=-1), "seed = -1"),
    ],
)
def test_bad_input_is_named(ask, named):
    with pytest.raises(UserError, match=f"theory: {named}"):
        ask()


@pytest.mark.parametrize(
    ("scaled", "tolerance"), [(0.0625, 0.002), (0.25, 0.004), (1.0, 0.013), (2.5, 0.031)]
)
def test_lock_in_for_small_steps(scaled: float, tolerance: float):
    p0 = np.linspace(0.4, 0.6, 41)
    exact = solve_lock_in(smooth_moves(Process(scaled / 8, 64, 64))).at(p0)
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
        exact = windows(Process(step, 64, 64)).at(0.5).visits
        assert 1.2 < exact / forms.window_closed_form(0.5, step, 64) < 2.0


N_RUNS = 8_000
MANY = 4
"""Standard errors allowed where one test function makes more than a hundred comparisons."""
CELLS = [
    (64, 64, 0.1, 0.52),
    (64, 8, 0.3, 0.55),
    (16, 5, 0.5, 0.55),
    (9, 4, 0.5, 0.4),
    (4, 4, 3.0, 0.6),
]


def _share_error(share: float, n: int = N_RUNS) -> float:
    # Ten hits are the least for which a normal error says anything.
    return math.sqrt(max(share * (1 - share), 10 / n) / n)


@pytest.mark.parametrize(("n_votes", "n_samples", "step", "p0"), CELLS)
def test_mean_time_to_lock_in_and_the_law_of_the_flips(n_votes, n_samples, step, p0):
    process = Process(step, n_votes, n_samples)
    runs = draw(p0, process, N_RUNS, seed=3, max_visits=600)
    near, law = windows(process).at(p0), flip_law(p0, process)
    assert np.all(runs.extinct_at_R >= 0)
    lost_R = runs.extinct_wrong_R
    assert abs(lost_R.mean() - near.lost) < 3 * _share_error(near.lost)
    ends = (runs.extinct_at_R, near.visits), (runs.extinct_at_R[lost_R], near.visits_lost)
    for drawn, exact in ends:
        error = drawn.std() / math.sqrt(drawn.size)
        assert abs(drawn.mean() - exact) < 3 * error + 0.002 * exact
    for table_F, ends_R in ((law.lost_F, runs.lost_R), (law.kept_F, ~runs.lost_R)):
        drawn_F = np.bincount(runs.flips_R[ends_R], minlength=3)[:3] / N_RUNS
        for drawn, exact in zip(drawn_F, table_F[:3], strict=True):
            assert abs(drawn - exact) < MANY * _share_error(exact)
    once_R = runs.flips_R[runs.degraded_R] == 1
    error = _share_error(law.single_share, once_R.size)
    assert abs(once_R.mean() - law.single_share) < MANY * error
    assert float(single_flip_share(p0, process)) == pytest.approx(law.single_share, abs=1e-6)


def test_intervals():
    wilson = proportion(np.array([True] * 3 + [False] * 7))
    assert wilson[0] == 0.3
    # Wilson's interval for 3 of 10, as tabulated: .1078 to .6032.
    assert wilson[1:] == pytest.approx((0.1078, 0.6032), abs=1e-4)
    mean = average(np.array([1.0, 2.0, 3.0]))
    assert mean[0] == 2.0
    # The 97.5 % quantile of the t distribution with two degrees of freedom is 4.303.
    assert mean[2] - 2.0 == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert math.isnan(proportion(np.array([], bool))[0])
    assert math.isnan(average(np.array([]))[0])
    assert math.isnan(average(np.array([4.0]))[1])


@pytest.mark.parametrize(
    ("n_votes", "n_samples", "step", "p0"),
    [(64, 32, 0.1, 0.52), (64, 64, 0.3, 0.55), (8, 8, 0.5, 0.4), (9, 4, 1.0, 0.6)],
)
def test_the_flip_law_adds_up(n_votes: int, n_samples: int, step: float, p0: float):
    process = Process(step, n_votes, n_samples)
    law = flip_law(p0, process, max_flips=60)
    lost = lock_in(p0, step, n_votes, n_samples)
    assert law.lost_F.sum() == pytest.approx(lost, abs=1e-6)
    assert law.kept_F.sum() == pytest.approx(1 - lost, abs=1e-6)
    # A problem that ends on the other label has flipped an odd number of times.
    wrong_first = float(process.wrong_vote(math.log(p0 / (1 - p0)))[0])
    assert law.lost_F[1::2].sum() == pytest.approx(law.degraded, abs=1e-6)
    assert law.lost_F[::2].sum() == pytest.approx(lost * wrong_first, abs=1e-6)
    # Mean number of flips, counted per problem and per visit.
    flips = float((law.lost_F + law.kept_F) @ np.arange(61))
    assert flip_rate_by_visit(p0, process, 400).sum() == pytest.approx(flips, abs=1e-5)


def test_what_cannot_degrade_has_no_share():
    share = single_flip_share(np.array([[0.5, 0.9999]]), Process(0.1, 64, 32))
    assert share.shape == (1, 2)
    assert math.isnan(share[0, 1]) and not math.isnan(share[0, 0])
    law = flip_law(0.9999, Process(0.1, 64, 32))
    assert (law.kept_F[0], law.lost_F.sum(), law.degraded) == (1.0, 0.0, 0.0)
    assert math.isnan(law.single_share)
    assert flip_rate_by_visit(0.9999, Process(0.1, 64, 32), 3).tolist() == [0.0, 0.0, 0.0]


def test_the_chart_covers_all_regimes():
    chart = regime_chart((0.3, 0.5, 0.53, 0.7), (0.25, 4.0), n_votes=16, n_samples=8)
    assert len(chart) == 8
    assert set(chart["regime"]) == {"kept", "lost", "slow", "sudden"}
    row = chart[(chart["p0"] == 0.53) & (chart["step_sqrt_votes"] == 4.0)].iloc[0]
    assert row["step"] == 1.0
    assert row["lost"] == pytest.approx(lock_in(0.53, 1.0, 16, 8))
    assert row["lost_diffusion"] == pytest.approx(lock_in(0.53, 1.0, 16, 8, method="diffusion"))
    assert row["form"] == "first move"
    slow = chart[chart["regime"] == "slow"]
    assert set(slow["form"]) == {"diffusion"}
    assert (slow["visits"] >= 5).all()
    assert (chart.loc[chart["regime"] == "sudden", "visits"] < 5).all()


def test_the_table_agrees_with_itself():
    table = drawn_table((0.45, 0.55), (0.3,), 16, 8, n_runs=4000, seed=1)
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 14
    within = (table["low"] <= table["exact"]) & (table["exact"] <= table["high"])
    assert (within == table["inside"]).all()
    # Of 14 intervals of 95 % fewer than ten hold the truth with a chance of one in two thousand.
    assert within.sum() >= 10
    again = drawn_table((0.45, 0.55), (0.3,), 16, 8, n_runs=4000, seed=1)
    assert np.array_equal(table["drawn"], again["drawn"])
    text = as_text(table)
    assert f"in {int(within.sum())} of 14 rows" in text
    assert text.count("P(ends wrong)") == 2


def test_the_command_prints_draws_or_the_chart(capsys: pytest.CaptureFixture[str]):
    for words, shown in (
        ("--p0 0.55 --step 0.3 --n-votes 16 --runs 1000", f"{lock_in(0.55, 0.3, 16, 8):.4f}"),
        ("--chart --n-votes 8", "regime"),
    ):
        argv = ["theory", "--n-samples", "8", *words.split()]
        assert run_cli("guard-sim", {"theory": Theory}, argv) == 0
        assert shown in capsys.readouterr().out
    for words in ("--chart --max-visits 9", "--response r.npz --lr 1e-4 --n-votes 9"):
        assert run_cli("guard-sim", {"theory": Theory}, ["theory", *words.split()]) == 2
        unread, read = words.split()[-2], words.split()[0]
        assert f"{unread}: is not read with {read}; leave" in capsys.readouterr().err
