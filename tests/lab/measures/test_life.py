import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.problems import problem_life, true_answer, vote_areas


def test_life_is_in_order(lived):
    life = problem_life(lived().visits.sample(frac=1, random_state=1), 0, 1)
    assert life["visit"].tolist() == [0, 1, 2] and life["label"].tolist() == [4, 9, 9]


def test_every_answer_has_an_area_and_they_fill_the_visit(lived):
    areas = vote_areas(lived(), 0, 1)
    np.testing.assert_allclose(areas.groupby("visit")["share"].sum(), 1)
    kinds = areas.drop_duplicates("area").set_index("area")["kind"].to_dict()
    assert kinds == {
        "answer 4": "correct",
        "answer 9": "label",
        "answer 2": "answer",
        "other answers": "other",
        "unparseable": "unparseable",
    }
    nine = areas[areas["area"] == "answer 9"]["share"]
    np.testing.assert_allclose(nine, np.array([20, 30, 50]) / 64)
    assert areas[areas["area"] == "unparseable"]["share"].tolist() == [1 / 64] * 3


def test_texts_of_the_trace_name_the_answers_and_the_rest_share_an_area(lived):
    trace = lived()
    rows = {"step": 0, "epoch": 0, "visit": 0, "problem": 1, "answer": [4, 9], "text": ["½", ""]}
    trace.answers = pd.DataFrame({"replicate": 0, **rows})
    areas = vote_areas(trace, 0, 1, top=2)
    assert areas["area"].unique().tolist() == ["½", "answer 9", "other answers", "unparseable"]
    np.testing.assert_allclose(areas[areas["kind"] == "other"]["share"], 3 / 64)


def test_a_truth_that_was_never_the_label_is_found_by_its_share(lived):
    never = lived(label_correct=[False] * 6)
    life = problem_life(never.visits, 0, 1)
    assert true_answer(life, never.votes[never.votes["problem"] == 1]) == 4
    assert true_answer(life) is None


def test_an_unknown_truth_stays_unknown(lived):
    unknown = lived(label_correct=[False] * 6, label_accuracy=[np.nan] * 6)
    assert true_answer(problem_life(unknown.visits, 0, 1), unknown.votes) is None
    kinds = set(vote_areas(unknown, 0, 1)["kind"])
    assert "correct" not in kinds
    alone = lived(votes=False, label_correct=[False] * 6, label_accuracy=[np.nan] * 6)
    named = set(vote_areas(alone, 0, 1)["area"])
    assert "label" in named and "wrong label" not in named  # it may be right


def test_without_votes_the_label_and_the_truth_have_areas(lived):
    table = vote_areas(lived(votes=False), 0, 1)
    areas = table.pivot(index="visit", columns="area", values="share")
    np.testing.assert_allclose(areas.sum(axis=1), 1)
    np.testing.assert_allclose(areas["true answer"], np.array([40, 30, 10]) / 64)
    # At visit 0 the label is the true answer: its votes are not counted twice.
    np.testing.assert_allclose(areas["wrong label"], [0, 30 / 64, 50 / 64])
    np.testing.assert_allclose(areas["unparseable"], 1 / 64)


def test_a_problem_that_was_never_visited_is_an_error(lived):
    with pytest.raises(UserError, match="replicate 0 has no visit of problem 7"):
        problem_life(lived().visits, 0, 7)
    with pytest.raises(UserError, match="missing columns route"):
        problem_life(pd.DataFrame(lived().visits).drop(columns="route"), 0, 1)
