"""The votes that a trainer's run keeps: every answer of every visit, and what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab.measures.life import vote_areas
from lab.trace.trace import Trace
from real import TrainConfig, train
from real.answers import AnswerIds
from real.record.journal import VoteRows, vote_rows

SMALL = TrainConfig(
    n_problems=5, batch_size=2, n_votes=16, n_samples=4, epochs=2, eval_samples=2, temperature=1.0
)
KEY = ["replicate", "step", "epoch", "visit", "problem"]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return train(SMALL, progress=False)


def test_rows_of_one_batch():
    answers_PV = np.array([[2, -1, 0, 2], [-1, -1, -1, -1], [1, 1, 1, 1]])
    rows = vote_rows(np.array([7, 3, 4]), answers_PV, visit=2)
    assert rows["problem"].tolist() == [7, 7, 4]
    assert rows["answer"].tolist() == [0, 2, 1]
    assert rows["count"].tolist() == [1, 2, 4]
    assert rows["visit"] == 2
    mixed = vote_rows(np.array([7, 3, 4]), answers_PV, visit=np.array([2, 9, 5]))
    assert mixed["visit"].tolist() == [2, 2, 5]
    nobody = vote_rows(np.array([7]), np.full((1, 4), -1), visit=2)
    assert len(nobody["problem"]) == len(nobody["count"]) == 0


def test_a_text_is_written_once():
    answer_ids = AnswerIds([None, None])
    count = VoteRows(answer_ids)
    both = np.array([0, 1])

    def texts(*responses: str) -> list[tuple[int, int, str]]:
        boxed = [[f"\\boxed{{{a}}}" for a in row.split()] for row in responses]
        ids_PV = np.stack([answer_ids.ids(p, row) for p, row in enumerate(boxed)])
        new = count.count(both, ids_PV, 1).answers
        return list(zip(new["problem"].tolist(), new["answer"].tolist(), new["text"], strict=True))

    assert texts("4 5", "4 4") == [(0, 0, "4"), (0, 1, "5"), (1, 0, "4")]
    assert texts("5 4", "4 4") == []
    assert texts("5 6", "7 4") == [(0, 2, "6"), (1, 1, "7")]
    count = VoteRows(answer_ids)  # as after a checkpoint
    assert texts("6 8", "7 7") == [(0, 3, "8")]
    ids_PV = np.stack([answer_ids.ids(p, [f"\\boxed{{{p + 20}}}"]) for p in (0, 1)])
    assert count.count(both, ids_PV, np.array([3, 8])).answers["visit"].tolist() == [3, 8]


def test_the_votes_of_a_visit_add_up_and_the_label_has_its_share(trace: Trace):
    visits = trace.visits.set_index(KEY)
    assert len(visits) == 15
    counted = trace.votes.groupby(KEY)["count"].sum().reindex(visits.index, fill_value=0)
    np.testing.assert_array_equal(counted + visits["n_unparseable"], visits["n_votes"])
    own = trace.votes.set_index([*KEY, "answer"])["count"]
    assert own.index.is_unique and (own > 0).all()
    labels = pd.MultiIndex.from_frame(trace.visits[[*KEY, "label"]])
    share = own.reindex(labels, fill_value=0) / SMALL.n_votes
    np.testing.assert_array_equal(share, trace.visits["match_rate"])


def test_every_answer_has_its_text_from_its_first_visit_on(trace: Trace):
    answers = ["replicate", "problem", "answer"]
    first = trace.votes.groupby(answers)["visit"].min().sort_index()
    written = trace.answers.set_index(answers)["visit"].sort_index()
    pd.testing.assert_series_equal(written, first, check_exact=True)
    assert trace.answers["visit"].nunique() > 1
    assert trace.answers["text"].str.fullmatch("-?[0-9]+").any()
    names = trace.answer_texts(0, 2)
    areas = vote_areas(trace, 0, 2, names)
    assert set(areas["area"]) & set(names.values())
    np.testing.assert_allclose(areas.groupby("visit")["share"].sum(), 1)


def test_without_them_the_run_is_the_same(trace: Trace):
    plain = train(replace(SMALL, keep_votes=False), progress=False)
    assert plain.votes.empty and plain.answers.empty
    pd.testing.assert_frame_equal(plain.visits, trace.visits, check_exact=True)
    pd.testing.assert_frame_equal(plain.evals, trace.evals, check_exact=True)
