"""Votes through the guard to what the trainer consumes: scripted votes, hand-made numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from guard_core import GuardConfig, PolicyStreams
from lab.trace.rows import checked
from real.settings.config import TrainConfig
from real.vote.decide import Fields, Supervisor, pay

OFF = GuardConfig.off()


def supervisor(
    guard: GuardConfig, truths: list[str | None], answers: int = 4, **settings: object
) -> Supervisor:
    """A supervisor whose answer book already knows the answers 0 .. answers-1 of every problem."""
    config = TrainConfig(guard=guard, **settings).settled()
    made = Supervisor(config, truths)
    for problem in range(len(truths)):
        made.answer_ids.ids(problem, [f"\\boxed{{{answer}}}" for answer in range(answers)])
    return made


def votes(*numbers: int, rest: int = -1, total: int = 64) -> np.ndarray:
    """`numbers[i]` votes for answer i, spread evenly over the response order, the rest given."""
    answers = [answer for answer, n in enumerate(numbers) for _ in range(n)]
    answers += [rest] * (total - len(answers))
    order = np.random.default_rng(0).permutation(total)
    return np.array(answers)[order]


def halves(*numbers: int, rest: int = -1) -> np.ndarray:
    """Exactly `numbers` among the 32 samples, and the same among the other 32 votes."""
    half = votes(*numbers, rest=rest, total=32)
    return np.concatenate([half, half])


class Visit(NamedTuple):
    rows: dict[str, Any]
    streams: PolicyStreams


def decide(
    made: Supervisor, problems_P: Any, answers_PV: Any, visit: Any, observed: Fields | None = None
) -> Visit:
    """Rows and rewards of one visit."""
    decided = made.decide(np.asarray(problems_P), answers_PV, visit, observed or {})
    assert decided is not None
    return Visit(decided.rows, pay(made.rule, decided, made.config.guard))


def contest(made: Supervisor, n_visits: int = 1) -> Visit:
    """Flip the label at every visit, ending on answer 0; returns the last visit."""
    for visit in range(1, n_visits + 1):
        winner_last = (n_visits - visit) % 2 == 0
        answers = halves(16, 8) if winner_last else halves(8, 16)
        found = decide(made, np.array([0]), answers[None], visit)
    return found


def test_plain_votes_become_standardised_advantages():
    made = supervisor(OFF, ["0"])
    found = decide(made, np.array([0]), halves(24, 8)[None], 1)
    answers = halves(24, 8)[:32]
    std = math.sqrt(24 * 8 / (32 * 31)) + 1e-6
    expected = np.where(answers == 0, 0.25 / std, -0.75 / std)
    np.testing.assert_allclose(found.streams.majority[0], expected, rtol=1e-12)
    assert not found.streams.minority.any()
    assert found.streams.weight.tolist() == [1.0] and not found.streams.drop.any()


def test_everything_follows_its_problem_in_any_order():
    rng = np.random.default_rng(1)
    truths: list[str | None] = ["0", "1", "2", None, "3", "0"]
    straight, shuffled = (supervisor(GuardConfig(), truths) for _ in range(2))
    for visit in range(1, 9):
        answers_NV = np.stack([votes(*rng.multinomial(60, [0.3, 0.3, 0.2, 0.2])) for _ in truths])
        order = rng.permutation(len(truths))
        a = decide(straight, np.arange(len(truths)), answers_NV, visit)
        b = decide(shuffled, order, answers_NV[order], visit)
        for name in ("majority", "minority", "weight", "drop"):
            np.testing.assert_array_equal(getattr(b.streams, name), getattr(a.streams, name)[order])
        for name in ("label", "flip_rate", "beta", "skipped", "label_accuracy"):
            np.testing.assert_array_equal(b.rows[name], a.rows[name][order])


def test_visit_zero_is_neither_visit_nor_flip():
    made = supervisor(GuardConfig(), ["1", None])
    rows = made.prime(np.stack([halves(20, 10), votes()]), {})
    columns = checked("visits", {**rows, "step": 0, "epoch": 0})
    assert columns["label"].tolist() == [0, -1]
    assert columns["match_rate"].tolist() == [40 / 64, 0.0]
    assert columns["n_unparseable"].tolist() == [4, 64]
    assert columns["visit"].tolist() == [0, 0]
    assert columns["label_accuracy"][0] == 20 / 64 and np.isnan(columns["label_accuracy"][1])
    assert columns["correct_competitive"].tolist() == [True, False]
    assert made.state.label.tolist() == [0, -1] and not made.state.visits.any()


def test_rows_fit_the_trace():
    made = supervisor(GuardConfig(), ["1"])
    found = decide(made, np.array([0]), halves(10, 20)[None], 1)
    columns = checked("visits", {**found.rows, "step": 1, "epoch": 1})
    assert columns["label_correct"].tolist() == [True]
    assert columns["label_accuracy"].tolist() == [40 / 64]
    assert columns["n_votes"].tolist() == [64] and columns["n_unparseable"].tolist() == [4]


def test_no_parseable_vote_rewards_nothing():
    found = decide(supervisor(GuardConfig(), ["0"]), np.array([0]), votes()[None], 1)
    assert not found.streams.majority.any() and not found.streams.minority.any()
    assert found.rows["label"].tolist() == [-1]


def test_true_labels_reward_the_truth_while_the_trace_tells_of_the_votes():
    made = supervisor(OFF, ["1"], labels="truth")
    answers = halves(20, 10)
    found = decide(made, np.array([0]), answers[None], 1)
    assert ((found.streams.majority[0] > 0) == (answers[:32] == 1)).all()
    assert found.rows["label"].tolist() == [0] and found.rows["label_correct"].tolist() == [False]


def test_a_truth_that_nobody_gave_rewards_nobody():
    made = supervisor(OFF, ["77"], labels="truth")
    found = decide(made, np.array([0]), halves(20, 10)[None], 1)
    assert not found.streams.majority.any()
    assert found.rows["label_accuracy"].tolist() == [0.0]


def test_guard_draws_belong_to_seed_problem_and_visit():
    one, two = (supervisor(OFF, ["0"] * 3, seed=seed) for seed in (0, 1))
    base = one._draws(np.array([0, 1, 2]), 4)
    again = one._draws(np.array([2, 0]), 4)
    assert again.tie.tolist() == [base.tie[2], base.tie[0]]
    assert not np.intersect1d(base.skip, two._draws(np.array([0, 1, 2]), 4).skip).size
    assert not np.intersect1d(base.pick, one._draws(np.array([0, 1, 2]), 5).pick).size


def test_problems_of_one_batch_may_be_at_different_visits():
    made = supervisor(GuardConfig(tie_break="random"), ["0"] * 3)
    mixed = made._draws(np.array([2, 0]), np.array([4, 7]))
    assert mixed.tie.tolist() == [
        made._draws(np.array([2]), 4).tie[0],
        made._draws(np.array([0]), 7).tie[0],
    ]
    found = decide(made, [2, 0], np.stack([votes(8, 8), votes(3)]), np.array([4, 7]))
    assert found.rows["visit"].tolist() == [4, 7]


@pytest.mark.parametrize("rule", ["mm_upt", "disctt", "coverrl"])
def test_a_truth_that_nobody_gave_does_not_reward_unreadable_responses(rule: str):
    """Its id must not be that of the unparseable column of rewards by answer."""
    settings = {"tiny_verifies": True} if rule == "coverrl" else {}
    made = supervisor(OFF, ["77"], rule=rule, labels="truth", **settings)
    answers = halves(15, 10)
    nothing_read = {"verdicts": np.full((1, 16), -1)} if rule == "coverrl" else {}
    majority = decide(made, np.array([0]), answers[None], 1, nothing_read).streams.majority[0]
    unreadable = answers[:32] < 0
    assert unreadable.sum() == 7
    best, worst = majority[unreadable].max(), majority[~unreadable].min()
    assert best < worst if rule == "coverrl" else best <= worst


def test_the_truth_that_is_trained_on_is_no_minority_candidate():
    """A correct answer behind a wrong majority is paid by the first stream alone."""
    guard = GuardConfig(tau_FR=0.1, W=2)
    made = supervisor(guard, ["1"], labels="truth")
    found = contest(made, 3)
    answers = halves(16, 8)[:32]
    assert found.rows["beta"][0] > 0
    right = found.streams.minority[0][answers == 1]
    assert (right == 0).all() and (found.streams.majority[0][answers == 1] > 0).all()
