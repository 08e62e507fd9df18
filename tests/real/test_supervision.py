from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from guard_core.decision import Treatment
from lab.trace.schema import checked
from real import train
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, generator
from real.vote.decide import Supervisor, pay

OFF = GuardConfig.off()


def supervisor(guard, truths, answers=4, **settings):
    """A supervisor whose answer book already knows the answers 0 .. answers-1 of every problem."""
    config = TrainConfig(guard=guard, **settings).settled()
    made = Supervisor(config, truths)
    for problem in range(len(truths)):
        made.answer_ids.ids(problem, [f"\\boxed{{{answer}}}" for answer in range(answers)])
    return made


def votes(*numbers, rest=-1, total=64):
    """`numbers[i]` votes for answer i, spread evenly over the response order, the rest given."""
    answers = [answer for answer, n in enumerate(numbers) for _ in range(n)]
    answers += [rest] * (total - len(answers))
    order = np.random.default_rng(0).permutation(total)
    return np.array(answers)[order]


def halves(*numbers):
    """Exactly `numbers` among the 32 samples, and the same among the other 32 votes."""
    return np.tile(votes(*numbers, total=32), 2)


def decide(made, problems_P, answers_PV, visit, observed=None):
    """Rows and rewards of one visit."""
    decided = made.decide(np.asarray(problems_P), answers_PV, visit, observed or {})
    streams = pay(made.rule, decided, made.config.guard)
    return SimpleNamespace(rows=decided.rows, streams=streams)


def test_everything_follows_its_problem_in_any_order():
    rng = np.random.default_rng(1)
    truths = ["0", "1", "2", None, "3", "0"]
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


def test_permuted_decisions_are_dealt_by_numbers_of_their_own():
    guard, rng, problems = GuardConfig().set(flip_rate="instant"), np.random.default_rng(1), 12
    own, dealt = (supervisor(guard, [None] * problems, treatment=t) for t in ("own", "permuted"))
    for visit in (1, 2):
        answers = np.stack([votes(*rng.permutation([30, 20, 14])) for _ in range(problems)])
        one, two = (m.decide(np.arange(problems), answers, visit, {}) for m in (own, dealt))
    deal = np.array([generator(0, Stream.DEAL, n, visit).random() for n in range(problems)])
    expected = Treatment.of(one.decision).permuted(np.arange(problems), deal)
    assert len(set(expected.weight)) > 1
    np.testing.assert_array_equal(two.decision.weight, expected.weight)


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


def test_true_labels_reward_the_truth_while_the_trace_tells_of_the_votes():
    made = supervisor(OFF, ["1"], labels="truth")
    answers = halves(20, 10)
    found = decide(made, np.array([0]), answers[None], 1)
    assert ((found.streams.majority[0] > 0) == (answers[:32] == 1)).all()
    assert found.rows["label"].tolist() == [0] and found.rows["label_correct"].tolist() == [False]


def test_guard_draws_belong_to_seed_problem_and_visit():
    guard = GuardConfig().set(tie_break="random")
    one, two = (supervisor(guard, ["0"] * 3, seed=seed) for seed in (0, 1))
    base = one.draws(np.array([0, 1, 2]), 4)
    again = one.draws(np.array([2, 0]), np.array([4, 7]))
    assert again.tie.tolist() == [base.tie[2], one.draws(np.array([0]), 7).tie[0]]
    for other in (two.draws(np.array([0, 1, 2]), 4), one.draws(np.array([0, 1, 2]), 5)):
        assert not np.intersect1d(base.skip, other.skip).size
    found = decide(one, [2, 0], np.stack([votes(8, 8), votes(3)]), np.array([4, 7]))
    assert found.rows["visit"].tolist() == [4, 7]


@pytest.mark.parametrize("rule", ["mm_upt", "disctt", "coverrl"])
def test_a_truth_that_nobody_gave_does_not_reward_unreadable_responses(rule):
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
    guard = GuardConfig().set(tau_FR=0.1, W=2)
    made = supervisor(guard, ["1"], labels="truth")
    for visit, counts in enumerate([(16, 8), (8, 16), (16, 8)], start=1):  # flips at every visit
        found = decide(made, np.array([0]), halves(*counts)[None], visit)
    answers = halves(16, 8)[:32]
    assert found.rows["beta"][0] > 0
    right = found.streams.minority[0][answers == 1]
    assert (right == 0).all() and (found.streams.majority[0][answers == 1] > 0).all()


SMALL = TrainConfig(
    n_problems=5, batch_size=2, n_votes=16, n_samples=4, epochs=2, eval_samples=2, temperature=1.0
)
KEY = ["replicate", "step", "epoch", "visit", "problem"]


@pytest.fixture(scope="module")
def trace():
    return train(SMALL, progress=False)


def test_the_votes_of_a_visit_add_up_and_the_label_has_its_share(trace):
    visits = trace.visits.set_index(KEY)
    assert len(visits) == 15
    counted = trace.votes.groupby(KEY)["count"].sum().reindex(visits.index, fill_value=0)
    np.testing.assert_array_equal(counted + visits["n_unparseable"], visits["n_votes"])
    own = trace.votes.set_index([*KEY, "answer"])["count"]
    assert own.index.is_unique and (own > 0).all()
    labels = pd.MultiIndex.from_frame(trace.visits[[*KEY, "label"]])
    share = own.reindex(labels, fill_value=0) / SMALL.n_votes
    np.testing.assert_array_equal(share, trace.visits["match_rate"])


def test_every_answer_has_its_text_from_its_first_visit_on(trace):
    answers = ["replicate", "problem", "answer"]
    first = trace.votes.groupby(answers)["visit"].min().sort_index()
    written = trace.answers.set_index(answers)["visit"].sort_index()
    pd.testing.assert_series_equal(written, first, check_exact=True)
    assert trace.answers["visit"].nunique() > 1
    assert trace.answers["text"].str.fullmatch("-?[0-9]+").any()
