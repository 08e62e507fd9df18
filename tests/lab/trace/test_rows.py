import numpy as np
import pytest

from guard_core import Draws, Guard, GuardConfig, Votes
from lab.trace.schema import DECIDED, VISITS, record_dtype, visit_columns

NUMBERED = {"replicate", "step", "epoch", "visit", "problem"}


@pytest.fixture
def batch():
    """Four problems, eight votes: three answers and one unparseable response each."""
    answers = np.array([[0, 0, 0, 0, 1, 1, 2, -1]] * 4)
    votes = Votes.from_answers(answers, n_samples=8, n_answers=3)
    guard = Guard(GuardConfig.paper())
    draws = Draws(*(np.zeros(4) for _ in range(3)))
    return guard.step(guard.init(4), votes, draws)[1], votes


def test_every_column_of_a_visit_is_there(batch):
    columns = visit_columns(*batch, truth=[0, 1, 2, -2])
    assert set(columns) == {c.name for c in VISITS} - NUMBERED
    assert columns["n_unparseable"].tolist() == [1] * 4 and columns["label"].tolist() == [0] * 4
    assert columns["match_rate"].tolist() == columns["mean_match_rate"].tolist() == [0.5] * 4
    assert columns["flip_rate"].tolist() == [0] * 4 and columns["weight"].tolist() == [1] * 4
    # Those that need the truth.
    assert columns["label_accuracy"].tolist() == [0.5, 0.25, 0.125, 0]
    assert columns["label_correct"].tolist() == [True, False, False, False]
    assert columns["correct_competitive"].tolist() == [True, True, False, False]


def test_without_a_true_answer_nothing_is_right(batch):
    columns = visit_columns(*batch, truth=[0, -1, -1, -1], known=[True, False, False, False])
    np.testing.assert_array_equal(columns["label_accuracy"], [0.5, np.nan, np.nan, np.nan])
    assert columns["label_correct"].tolist() == [True, False, False, False]
    assert columns["correct_competitive"].tolist() == [True, False, False, False]


def test_no_label_is_not_the_missing_truth(batch):
    decision, votes = batch
    decision.label[:] = -1
    assert not visit_columns(decision, votes, truth=[-1] * 4)["label_correct"].any()


def test_before_training_the_guard_decides_nothing(batch):
    columns = visit_columns(*batch, truth=[0, 1, 2, -2], before_training=True)
    assert (columns["weight"], columns["beta"], columns["skipped"]) == (1, 0, False)
    assert np.isnan(columns["mean_match_rate"])
    assert columns["match_rate"].tolist() == [0.5] * 4


def test_records_have_the_types_of_the_schema():
    record = record_dtype(("majority", np.int32), ("right", np.int32))
    assert record.itemsize == 64
    assert set(record.names or ()) == {"majority", "right", "n_unparseable", "n_minority", *DECIDED}
    for column in VISITS:
        if column.name in (record.names or ()):
            assert record[column.name] == np.dtype(column.dtype)
