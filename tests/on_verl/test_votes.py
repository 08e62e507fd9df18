"""The guard fed by key: problems and sessions, never positions."""

import random
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.trace.trace import load
from real.other_trainers import GuardedRun
from real.settings.config import TrainConfig
from real.verl.plugin.votes import compute_score, dealt, places_of, votes_of

GUARD = GuardConfig().set(W=2, tau_FR=0.1, tau_MR=0.3, theta_MR=0.2, p_skip=0.9, skip_share=0.5)


def config(**changed):
    given = {"n_votes": 8, "n_samples": 4, "guard": GUARD, "mini_batch": 1, **changed}
    return TrainConfig(
        model="somewhere", problems="verl", answer_check="strings", **given
    ).settled()


def batch(rng, ids, n_votes=8, answers=3):
    """Texts and problem ids of a batch, by key, shuffled."""
    texts, numbers = {}, {}
    for place, number in enumerate(ids):
        for session in range(n_votes):
            key = f"{number}x{place}_{session}_0"
            texts[key] = f"\\boxed{{{rng.randrange(answers)}}}"
            numbers[key] = number
    keys = list(texts)
    rng.shuffle(keys)
    return {k: texts[k] for k in keys}, {k: numbers[k] for k in keys}


def read(run, ids, texts, numbers):
    place_of = places_of(ids)
    votes = votes_of(texts, {key: place_of[number] for key, number in numbers.items()})
    return run.read(texts, votes)


def visit(run, ids, drawn):
    return run.visit(read(run, ids, *drawn), dict.fromkeys(drawn[0], 2))


def test_votes_follow_sessions_and_their_last_turn():
    keys = [f"u{u}_{s}_0" for u in range(3) for s in range(12)] + ["u1_3_1"]
    random.Random(0).shuffle(keys)
    found = votes_of(keys, {key: 7 - int(key[1]) for key in keys})
    votes = ([key for key in found if found[key] == problem] for problem in (5, 6, 7))
    expected = ([f"u{u}_{s}_{int((u, s) == (1, 3))}" for s in range(12)] for u in (2, 1, 0))
    assert list(votes) == list(expected)
    with pytest.raises(UserError, match="twice in one batch"):
        votes_of(keys, dict.fromkeys(keys, 1))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_has_its_share_of_every_mini_batch(ranks):
    minis, size = [list(range(8)), list(range(8, 14)), list(range(14, 22))], 8
    lengths = [10 + (7 * row) % 13 for row in range(24)]
    order = dealt(minis, ranks, lengths, size)
    assert sorted(order) == list(range(24))
    per_rank, share = 24 // ranks, size // ranks
    minis[1] += [22, 23]
    for number, mini in enumerate(minis):
        starts = [rank * per_rank + number * share for rank in range(ranks)]
        assert sorted(row for s in starts for row in order[s : s + share]) == sorted(mini)
        loads = [sum(lengths[row] for row in order[s : s + share]) for s in starts]
        assert max(loads) - min(loads) <= max(lengths)


def test_ranks_that_cannot_share_a_mini_batch_evenly_are_refused():
    with pytest.raises(UserError, match="3 ranks cannot share the 8 rows of a mini-batch evenly"):
        dealt([list(range(8))], 3, [1] * 8, 8)


def test_mini_batches_are_those_of_the_trainer_also_where_a_problem_is_skipped(tmp_path):
    ids = list(range(6))
    run = GuardedRun(config(mini_batch=2), ids, [None] * 6)
    rng, sizes = random.Random(0), set()
    with run.opened(tmp_path / "run", "tiny", "verl"):
        for _ in range(8):
            paid = visit(run, ids, batch(rng, ids))
            sizes |= set(map(len, paid.minis))
            assert list(chain(*paid.minis)) == list(range(len(paid.keys)))
    assert sizes == {4, 8}


def test_a_session_that_failed_is_a_vote_for_nothing(tmp_path):
    run = GuardedRun(config(), [5, 6], [None, None])
    texts, numbers = batch(random.Random(1), [5, 6])
    lost = [key for key in texts if key.startswith("6x1_") and key[4] in "034567"]
    for key in lost:
        del texts[key], numbers[key]
    voted = read(run, [5, 6], texts, numbers)
    assert (voted.answers_PV >= 0).sum(axis=1).tolist() == [8, 2]
    with run.opened(tmp_path / "run", "tiny", "verl"):
        paid = visit(run, [5, 6], (texts, numbers))
    assert load(tmp_path / "run").visits["n_unparseable"].tolist() == [0, 6]
    assert [len(mini) for mini in paid.minis] == [4, 2]


def test_a_batch_may_be_skipped_whole(tmp_path):
    run = GuardedRun(config(guard=GUARD.set(min_share=1.0)), [5, 6], [None, None])
    with run.opened(tmp_path / "run", "tiny", "TRL"):
        paid = visit(run, [5, 6], batch(random.Random(0), [5, 6]))
    assert paid.keys == paid.minis == [] and len(paid.columns) == 16
    assert not np.any([row[:2] for row in paid.columns.values()])


def test_votes_before_training_are_taken_by_problem(tmp_path):
    """Also where verl lost all votes of one problem, here 2, in a batch before the others'."""
    ids = [4, 9, 2, 7]
    run, other = (GuardedRun(config(), ids, [None] * 4) for _ in range(2))
    texts, numbers = batch(random.Random(0), [4, 2, 9, 7])
    parts = [[key for key in texts if numbers[key] in part] for part in ([4], [9, 7])]
    with run.opened(tmp_path / "run", "tiny", "verl"):
        run.prime(
            read(run, ids, {k: texts[k] for k in part}, {k: numbers[k] for k in part})
            for part in parts
        )
    expected = read(other, ids, texts, numbers).answers_PV
    trace = load(tmp_path / "run")
    assert trace.visits["problem"].tolist() == [0, 1, 2, 3]
    assert trace.visits["n_unparseable"].tolist() == [0, 0, 8, 0]
    counts = {(v.problem, v.answer): v.count for v in trace.votes.itertuples(index=False)}
    assert counts == Counter((p, a) for p in (0, 1, 3) for a in expected[p].tolist())


def test_a_response_without_a_true_answer_is_neither_right_nor_wrong():
    found = [compute_score("set", r"\boxed{7}", truth) for truth in ("7", "8", None)]
    assert [score["acc"] for score in found] == [1.0, 0.0, None]
    assert [score["score"] for score in found] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("ids", [[1, None, 2], [1, 2, 1]])
def test_an_index_that_is_missing_or_stands_twice_is_refused(ids):
    with pytest.raises(UserError, match=r"extra_info\.index: (missing|1 occurs 2 times) in "):
        places_of(ids)
